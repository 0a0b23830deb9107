//! Commands about this program and this machine.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod schema;
pub(crate) mod shell;
