//! [`Opener`]: stores for reading, each bucket opened once and shared.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Address, LocalStore, RemoteSettings, Store, StoreError};

/// Opens places for reading. Whoever asks for the same bucket, container or server gets the same store; all of them share
/// one I/O thread.
#[derive(Debug, Default)]
pub struct Opener {
    settings: RemoteSettings,
    opened: Mutex<Opened>,
}

#[derive(Debug, Default)]
struct Opened {
    stores: HashMap<String, Arc<dyn Store>>,
    #[cfg(feature = "full")]
    io: Option<Arc<crate::IoThread>>,
}

impl Opener {
    /// Opens remote places by these settings.
    #[must_use]
    pub fn new(settings: RemoteSettings) -> Self {
        Self {
            settings,
            opened: Mutex::default(),
        }
    }

    /// The store at `address`. Nothing is asked yet: wrong settings are told by the first request, within a second of it
    /// where the service answers. A folder is listed with what its symbolic links lead to.
    ///
    /// # Errors
    /// [`StoreError::Settings`] when the settings cannot be used, or this build has no remote stores.
    pub fn open(&self, address: &Address) -> Result<Arc<dyn Store>, StoreError> {
        if let Address::Folder(path) = address {
            return Ok(Arc::new(LocalStore::new(path).following_links()));
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

    #[cfg(feature = "full")]
    fn open_remote(
        &self,
        address: &Address,
        opened: &mut Opened,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let io = match &opened.io {
            Some(io) => Arc::clone(io),
            None => Arc::clone(opened.io.insert(Arc::new(crate::IoThread::start()?))),
        };
        let store = crate::RemoteStore::unasked(address, &self.settings, io)?;
        Ok(Arc::new(store))
    }

    #[cfg(not(feature = "full"))]
    fn open_remote(&self, address: &Address, _: &mut Opened) -> Result<Arc<dyn Store>, StoreError> {
        let _ = &self.settings;
        Err(crate::address::not_in_this_build(address))
    }
}
