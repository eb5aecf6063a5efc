"""Name the version and the distributions: what the builds, hints and saved programs say."""

VERSION = "0.5.0"
COMPILER = "rammer-compiler"  # on the package index, `rammer` belongs to another project
RUNTIME = "rammer-runtime"
TESTING = "rammer-testing"
