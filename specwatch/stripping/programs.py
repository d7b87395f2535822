"""Programs that start another one with the words that are left, and their options.

Sources: the manual pages of coreutils 9, util-linux 2.40, numactl 2, sudo 1.9, systemd 257 and
bash 5; the help of uv 0.9, conda 25, poetry 2, tini 0.19 and dumb-init 1.2.
"""

from __future__ import annotations

from specwatch.stripping.options import Grammar

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
SHELL = Grammar.of(
    valued="-o +o -O +O --rcfile --init-file",
    plain="-a -b -c -e -f -h -i -k -l -m -n -p -r -s -t -u -v -x -B -C -E -H -P -T"
    " +a +b +e +f +h +k +m +n +p +t +u +v +x +B +C +E +H +P +T"
    " --login --norc --noprofile --posix --verbose --restricted",
)

PYTHON = Grammar.of(
    valued="-X -W --check-hash-based-pycs",
    plain="-b -B -d -E -i -I -O -P -q -R -s -S -t -u -v -x",
    last="-m -c",
)

_UV = (
    "--extra --no-extra --group --no-group --only-group --env-file --with --with-editable"
    " --with-requirements -p --python --package --python-platform --index --default-index"
    " -i --index-url --extra-index-url -f --find-links --index-strategy --keyring-provider"
    " --resolution --prerelease --exclude-newer --link-mode -C --config-setting --refresh-package"
    " -P --upgrade-package --reinstall-package --no-build-package --no-binary-package"
    " --cache-dir --project --config-file --color --allow-insecure-host -w --from"
    " --torch-backend --python-preference -c --constraints --overrides -b --build-constraints"
)
_UV_PLAIN = (
    "-q -v -n --quiet --verbose --offline --no-cache --isolated --frozen --locked --no-sync"
    " --exact --all-extras --no-dev --dev --only-dev --no-default-groups --all-groups --active"
    " --no-active --no-env-file --no-project --no-editable --all-packages --no-index --refresh"
    " -U --upgrade --reinstall --compile-bytecode --no-build --no-binary --no-build-isolation"
    " --no-sources --no-config --no-progress --managed-python --no-managed-python"
    " --no-python-downloads --native-tls --system-certs --prerelease-allow"
)
UV = Grammar.of(
    valued="--project --config-file --cache-dir --color",
    folder="--directory",
    plain="-q -v --quiet --verbose --offline --no-cache -n --no-config --native-tls",
)
UV_RUN = Grammar.of(valued=_UV, plain=f"{_UV_PLAIN} -m --module", folder="--directory")
UVX = Grammar.of(valued=_UV, plain=_UV_PLAIN, folder="--directory")

CONDA_RUN = Grammar.of(
    valued="-n --name -p --prefix -e --env -r --root-prefix --label",
    folder="--cwd",
    plain="-v --verbose -a --attach --dev --debug-wrapper-scripts --no-capture-output"
    " --live-stream --detach --clean-env",
)

WRAPPERS = {
    "env": Grammar.of(
        valued="-u --unset -a --argv0",
        folder="-C --chdir",
        plain="- -i --ignore-environment -v --debug --block-signal --default-signal"
        " --ignore-signal --list-signal-handling",
    ),
    "exec": Grammar.of(valued="-a", plain="-c -l"),
    "command": Grammar.of(plain="-p"),
    "builtin": Grammar.of(),
    "nohup": Grammar.of(),
    "ddtrace-run": Grammar.of(),
    "busybox": Grammar.of(),
    "time": Grammar.of(
        valued="-f --format -o --output",
        plain="-a --append -p --portability -q --quiet -v --verbose",
    ),
    "nice": Grammar.of(valued="-n --adjustment", plain="-0 -1 -2 -3 -4 -5 -6 -7 -8 -9 +"),
    "ionice": Grammar.of(valued="-c --class -n --classdata", plain="-t --ignore"),
    "chrt": Grammar.of(
        valued="-T --sched-runtime -P --sched-period -D --sched-deadline",
        plain="-a --all-tasks -b --batch -d --deadline -e --ext -f --fifo -i --idle -o --other"
        " -r --rr -R --reset-on-fork -v --verbose",
        operands=1,
    ),
    "taskset": Grammar.of(plain="-a --all-tasks -c --cpu-list", operands=1),
    "numactl": Grammar.of(
        valued="-i --interleave -w --weighted-interleave -p --preferred -P --preferred-many"
        " -m --membind -N --cpunodebind -C --physcpubind",
        plain="-l --localalloc -a --all -b --balancing --cpu-compress",
    ),
    "timeout": Grammar.of(
        valued="-k --kill-after -s --signal",
        plain="-f --foreground -p --preserve-status -v --verbose",
        operands=1,
    ),
    "stdbuf": Grammar.of(valued="-i --input -o --output -e --error"),
    "setsid": Grammar.of(plain="-c --ctty -f --fork -w --wait"),
    "prlimit": Grammar.of(
        plain="-c --core -d --data -l --memlock -m --rss -n --nofile -s --stack -u --nproc -v --as"
    ),
    "sudo": Grammar.of(
        valued="-u --user -g --group -p --prompt -C --close-from -r --role -t --type"
        " -T --command-timeout -U --other-user",
        folder="-D --chdir",
        root="-h --host -R --chroot",
        plain="-A --askpass -B --bell -b --background -E --preserve-env -H --set-home -k"
        " --reset-timestamp -n --non-interactive -P --preserve-groups -S --stdin",
    ),
    "runuser": Grammar.of(valued="-u --user -g --group -G --supp-group -w", plain="-P --pty"),
    "setpriv": Grammar.of(
        valued="--reuid --regid --groups --inh-caps --ambient-caps --bounding-set --securebits"
        " --pdeathsig --rgid --ruid --egid --euid",
        plain="--clear-groups --keep-groups --init-groups --no-new-privs --nnp --reset-env",
    ),
    "gosu": Grammar.of(operands=1),
    "su-exec": Grammar.of(operands=1),
    "tini": Grammar.of(valued="-p -e", plain="-s -g -v -w"),
    "dumb-init": Grammar.of(
        valued="-r --rewrite", plain="-c --single-child -v --verbose -V --version"
    ),
    "catatonit": Grammar.of(plain="-g -P -v"),
    "systemd-run": Grammar.of(
        valued="-p --property -u --unit --uid --gid --nice -E --setenv --slice --description"
        " --service-type --on-active --on-boot"
        " --on-startup --on-unit-active --on-unit-inactive --on-calendar --timer-property"
        " --path-property --socket-property --background --job-mode --capsule -C",
        folder="--working-directory",
        root="-M --machine -H --host",
        plain="--scope --user --system --no-block -r --remain-after-exit --send-sighup --wait"
        " -d --same-dir -t --pty -T --pty-late -P --pipe -q --quiet -G --collect --slice-inherit"
        " --expand-environment --no-ask-password --on-clock-change --on-timezone-change",
    ),
    "systemd-inhibit": Grammar.of(
        valued="--what --who --why --mode", plain="--no-ask-password --no-pager"
    ),
    "systemd-cat": Grammar.of(
        valued="-t --identifier -p --priority --stderr-priority --level-prefix --namespace"
    ),
}
"""Those that need nothing but the knowledge of their options."""

TAKES_ASSIGNMENTS = frozenset({"env", "sudo"})

ELSEWHERE = {
    "kubectl": "a pod: change the command in its manifest",
    "oc": "a pod: change the command in its manifest",
    "helm": "a pod: change the values of its chart",
    "docker-compose": "a container that a file of compose describes: change `command` there",
    "podman-compose": "a container that a file of compose describes: change `command` there",
    "apptainer": "a container whose run script is not seen here: start vLLM by its full command",
    "singularity": "a container whose run script is not seen here: start vLLM by its full command",
    "srun": "a job of Slurm: give specwatch the command that the job runs",
    "sbatch": "a job of Slurm: give specwatch the command that the job runs",
    "ssh": "another machine: run specwatch there",
    "fish": "fish, whose language is not that of sh: use sh -c",
    "csh": "csh, whose language is not that of sh: use sh -c",
    "tcsh": "tcsh, whose language is not that of sh: use sh -c",
    "su": "su, which takes a text for the user's own shell: use runuser -u USER -- vllm serve",
}
"""Where programs run vLLM that cannot be followed, and what to do instead."""
