//! Exit codes of the command.

/// All went well.
pub(crate) const DONE: i32 = 0;
/// What the user asked for cannot be.
pub(crate) const USER_ERROR: i32 = 2;
/// A worker, a disk or a network failed.
pub(crate) const GAVE_UP: i32 = 3;
/// ronde is wrong.
pub(crate) const BUG: i32 = 4;
