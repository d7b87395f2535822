"""The options of ``docker run``, ``podman run`` and ``nerdctl run``.

Sources: the reference of ``docker container run`` (Docker 28), podman-run(1) (Podman 5) and the
command reference of nerdctl 2.
"""

from __future__ import annotations

from specwatch.stripping.options import Grammar

ENGINES = frozenset({"docker", "podman", "nerdctl"})

ENGINE = Grammar.of(
    valued="--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey"
    " -n --namespace -a --address --data-root --snapshotter --cgroup-manager --connection --url"
    " --identity --root --runroot --runtime --storage-driver --storage-opt --tmpdir"
    " --events-backend --cni-path --cni-netconfpath --hosts-dir",
    plain="-D --debug --tls --tlsverify -r --remote --syslog --insecure-registry"
    " --experimental --debug-full",
)

RUN = Grammar.of(
    valued="--add-host --annotation --arch -a --attach --authfile --blkio-weight"
    " --blkio-weight-device --cap-add --cap-drop --cert-dir --cgroup-conf --cgroup-parent"
    " --cgroupns --cgroups --chrootdirs --cidfile --conmon-pidfile --cpu-count --cpu-percent"
    " --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus"
    " --cpuset-cpus --cpuset-mems --creds --decryption-key --detach-keys --device"
    " --device-cgroup-rule --device-read-bps --device-read-iops --device-write-bps"
    " --device-write-iops --dns --dns-opt --dns-option --dns-search --domainname --entrypoint"
    " -e --env --env-file --env-merge --expose --gidmap --gpus --group-add --group-entry"
    " --health-cmd --health-interval --health-log-destination --health-max-log-count"
    " --health-max-log-size --health-on-failure --health-retries --health-start-interval"
    " --health-start-period --health-startup-cmd --health-startup-interval"
    " --health-startup-retries --health-startup-success --health-startup-timeout"
    " --health-timeout --hooks-dir -h --hostname --hosts-file --hostuser --image-volume"
    " --init-ctr --init-path --io-maxbandwidth --io-maxiops --ip --ip6 --ipc --ipfs-address"
    " --isolation --kernel-memory -l --label --label-file --link --link-local-ip --log-driver"
    " --log-opt --mac-address -m --memory --memory-reservation --memory-swap"
    " --memory-swappiness --mount --name --net --net-alias --network --network-alias"
    " --oom-score-adj --os --passwd-entry --personality --pid --pidfile --pids-limit --platform"
    " --pod --pod-id-file --preserve-fd --preserve-fds -p --publish --pull --rdt-class"
    " --requires --restart --retry --retry-delay --runtime --sdnotify --seccomp-policy --secret"
    " --security-opt --shm-size --shm-size-systemd --stop-signal --stop-timeout --storage-opt"
    " --subgidname --subuidname --sysctl --systemd --timeout --tmpfs --tz --uidmap --ulimit"
    " --umask --unsetenv -u --user --userns --uts --variant -v --volume --volume-driver"
    " --volumes-from -w --workdir --cosign-key --verify",
    plain="-d --detach --disable-content-trust --env-host --http-proxy --init -i --interactive"
    " --no-healthcheck --no-hostname --no-hosts --oom-kill-disable --passwd --privileged"
    " -P --publish-all -q --quiet --read-only --read-only-tmpfs --replace --rm --rmi"
    " --sig-proxy --tls-verify -t --tty --unsetenv-all --use-api-socket",
)
