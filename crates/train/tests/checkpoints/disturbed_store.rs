//! A store that fails or waits before an object is written.

use std::sync::{Arc, Mutex};

use ronde_store::{
    Condition, ObjectEntry, ObjectName, Store, StoreError, StoredObject, Upload, Version,
};

/// A function that is called before an object is written.
type Before = dyn FnMut(&ObjectName) -> Result<(), StoreError> + Send;

/// A store that calls a function before an object is written.
pub(crate) struct Disturbed {
    inner: Arc<dyn Store>,
    before: Mutex<Box<Before>>,
}

impl Disturbed {
    pub(crate) fn over(
        inner: &Arc<dyn Store>,
        before: impl FnMut(&ObjectName) -> Result<(), StoreError> + Send + 'static,
    ) -> Arc<dyn Store> {
        Arc::new(Self {
            inner: inner.clone(),
            before: Mutex::new(Box::new(before)),
        })
    }
}

impl std::fmt::Debug for Disturbed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disturbed({:?})", self.inner)
    }
}

impl Store for Disturbed {
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError> {
        (self.before.lock().unwrap())(name)?;
        self.inner.create(name)
    }

    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        self.inner.put_if(name, bytes, condition)
    }

    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError> {
        self.inner.open(name)
    }

    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<ObjectEntry>, StoreError> {
        self.inner.list(folder)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.inner.delete(name)
    }

    fn sweep(&self) -> Result<u64, StoreError> {
        self.inner.sweep()
    }
}
