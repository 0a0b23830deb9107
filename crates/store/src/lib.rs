//! Object storage: local disk and, with the feature `full`, S3, Azure Blob, Google Cloud Storage
//! and, for reading, web servers. An object is visible completely or not at all.
//!
//! [`Store`] is the interface, with blocking calls. [`LocalStore`] is a folder; `RemoteStore` a
//! bucket behind one I/O thread; [`Encrypted`] wraps any of them. [`open`] chooses by an address
//! such as `checkpoints` or `s3://bucket/prefix`, and an [`Opener`] opens many locations for
//! reading. This crate does not know the contents of the objects. `HttpService` sends requests to other web services.

#![forbid(unsafe_code)]

mod address;
mod encrypted;
mod error;
mod key;
mod key_source;
mod listing;
mod local;
mod lock;
mod name;
mod object_entry;
mod open;
mod opener;
mod regular;
#[cfg(feature = "full")]
mod remote;
mod sealing;
mod settings;
mod stamp;
mod store;
mod waits;

pub use address::Address;
pub use encrypted::Encrypted;
pub use error::{StoreError, may_pass};
pub use key::MasterKey;
pub use key_source::KeySource;
pub use listing::{FolderListing, UnusableCause, UnusableEntry};
pub use local::LocalStore;
pub use name::ObjectName;
pub use object_entry::ObjectEntry;
pub use open::open;
pub use opener::Opener;
pub use regular::{open_regular, read_regular};
#[cfg(feature = "full")]
pub use remote::{HttpLogin, HttpService, IoThread, RemoteStore};
pub use settings::{NoticeCallback, RemoteSettings};
pub use stamp::Stamp;
pub use store::{Condition, Store, StoreExt, StoredObject, Upload, Version, VersionedObject};
