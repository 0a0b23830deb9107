//! [`Opener`]: stores for reading; each bucket is opened once and shared.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::Address;
use crate::error::StoreError;
use crate::local::LocalStore;
use crate::settings::RemoteSettings;
use crate::store::Store;

/// Opens locations for reading. Callers that open the same bucket, container or server share one
/// store; all stores share one I/O thread.
#[derive(Debug, Default)]
pub struct Opener {
    settings: RemoteSettings,
    opened: Mutex<OpenStores>,
}

#[derive(Debug, Default)]
struct OpenStores {
    stores: HashMap<String, Arc<dyn Store>>,
    #[cfg(feature = "full")]
    io: Option<Arc<crate::IoThread>>,
}

impl Opener {
    /// Uses these settings for remote locations.
    #[must_use]
    pub fn new(settings: RemoteSettings) -> Self {
        Self {
            settings,
            opened: Mutex::default(),
        }
    }

    /// Returns the store at `address` without sending a request: wrong settings are reported by the
    /// first request, within a second if the service responds. Listings of a folder follow symbolic
    /// links.
    ///
    /// # Errors
    /// [`StoreError::Settings`] when the settings cannot be used, or this build has no remote
    /// stores.
    pub fn open(&self, address: &Address) -> Result<Arc<dyn Store>, StoreError> {
        if let Address::Folder(path) = address {
            return Ok(Arc::new(self.local(path)));
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let key = address.to_string();
        if let Some(store) = opened.stores.get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = self.open_remote(address, &mut opened)?;
        opened.stores.insert(key, Arc::clone(&store));
        Ok(store)
    }

    /// Returns the store of a user's folder: follows links, and tries again after errors that may
    /// pass, for as long as the settings allow a read to take.
    #[must_use]
    pub fn local(&self, folder: &Path) -> LocalStore {
        let RemoteSettings {
            retry_limit, tell, ..
        } = &self.settings;
        LocalStore::new(folder)
            .following_links()
            .retrying(*retry_limit, tell.clone())
    }

    #[cfg(feature = "full")]
    fn open_remote(
        &self,
        address: &Address,
        opened: &mut OpenStores,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let io = match &opened.io {
            Some(io) => Arc::clone(io),
            None => Arc::clone(opened.io.insert(Arc::new(crate::IoThread::start()?))),
        };
        let store = crate::RemoteStore::unconnected(address, &self.settings, io)?;
        Ok(Arc::new(store))
    }

    #[cfg(not(feature = "full"))]
    fn open_remote(
        &self,
        address: &Address,
        _: &mut OpenStores,
    ) -> Result<Arc<dyn Store>, StoreError> {
        Err(crate::open::not_in_this_build(address))
    }
}
