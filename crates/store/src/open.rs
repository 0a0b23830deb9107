//! [`open`]: opens the store at an address.

use std::sync::Arc;

use crate::address::Address;
use crate::error::StoreError;
use crate::local::LocalStore;
use crate::settings::RemoteSettings;
use crate::store::Store;

/// Opens the store at `address` for reading and writing. For a remote address this starts the I/O
/// thread that owns the async runtime (see `IoThread`) and requests one listing, so that wrong
/// settings are reported at once. [`crate::Opener`] opens many locations for reading.
///
/// # Errors
/// [`StoreError::Settings`] when the address or the settings cannot be used, or this build has no
/// remote stores.
pub fn open(address: &Address, settings: &RemoteSettings) -> Result<Arc<dyn Store>, StoreError> {
    match address {
        Address::Folder(path) => Ok(Arc::new(LocalStore::new(path))),
        Address::Web { .. } => Err(StoreError::Settings {
            operation: "open",
            location: address.to_string(),
            cause: "a web server can only be read; write objects to a folder or a bucket"
                .to_owned(),
        }),
        #[cfg(feature = "full")]
        remote => {
            let io = Arc::new(crate::IoThread::start()?);
            Ok(Arc::new(crate::RemoteStore::connect(remote, settings, io)?))
        }
        #[cfg(not(feature = "full"))]
        remote => {
            let _ = settings;
            Err(not_in_this_build(remote))
        }
    }
}

/// Returns the error of a build without the feature `full` for a remote address.
#[cfg(not(feature = "full"))]
pub(crate) fn not_in_this_build(address: &Address) -> StoreError {
    StoreError::Settings {
        operation: "open",
        location: address.to_string(),
        cause: "this build does not support remote stores; build ronde with `--features full`"
            .to_owned(),
    }
}
