//! Nothing: the tests are all of this package.
