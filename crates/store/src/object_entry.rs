//! [`ObjectEntry`]: one object of a listing.

use crate::name::ObjectName;
use crate::stamp::Stamp;

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEntry {
    /// The object's name.
    pub name: ObjectName,
    /// The object's length in bytes.
    pub bytes: u64,
    /// The stamp as returned by [`StoredObject::stamp`].
    pub stamp: Stamp,
}
