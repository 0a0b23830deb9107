//! Commands about data.

pub(crate) mod files;
pub(crate) mod progress;
