"""The test suite; a package, so that test modules of different folders may share a name."""
