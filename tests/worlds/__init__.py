"""Eight worlds in which the truth is known, and the policies that have to live in them."""
