//! [`StoredLog`]: a text in object storage that grows and is rotated, read from where the last look ended.

use std::io::Write;
use std::sync::Arc;

use ronde_store::{ObjectName, Store, StoreError};

use super::CHUNK_BYTES;

/// How often an object that is replaced while it is read is read again.
const CONFLICTS_MAX: u32 = 5;

/// A growing text: an object, and the one that had its contents before it was rotated.
#[derive(Debug)]
pub struct StoredLog {
    store: Arc<dyn Store>,
    rotated: String,
    current: String,
    /// The bytes of the current object that were read.
    position: u64,
    /// Whether a look has found one of the objects.
    is_known: bool,
}

impl StoredLog {
    pub(super) fn new(store: Arc<dyn Store>, rotated: String, current: String) -> Self {
        Self {
            store,
            rotated,
            current,
            position: 0,
            is_known: false,
        }
    }

    /// Passes the bytes since the last call to `out`; the first call begins with the rotated text. Returns whether there
    /// is such a text. Costs a request, and one for each MiB that is new.
    ///
    /// # Errors
    /// Errors of the store, or `out` cannot be written.
    pub fn read(&mut self, out: &mut dyn Write) -> Result<bool, StoreError> {
        if !self.is_known {
            self.is_known = self.copy(&self.rotated, 0, out)?.is_some();
        }
        let mut length = self.copy(&self.current, self.position, out)?;
        if length.is_some_and(|length| length < self.position) {
            // It was rotated: the rest of its contents is in the other object.
            self.copy(&self.rotated, self.position, out)?;
            length = self.copy(&self.current, 0, out)?;
        }
        self.is_known |= length.is_some();
        self.position = length.unwrap_or(self.position);
        Ok(self.is_known)
    }

    /// Copies an object from a position on, and returns its length; `None` if it does not exist.
    fn copy(
        &self,
        name: &str,
        position: u64,
        out: &mut dyn Write,
    ) -> Result<Option<u64>, StoreError> {
        let name = ObjectName::new(name)?;
        let (mut start, mut conflicts) = (position, 0);
        loop {
            match self.copy_once(&name, &mut start, out) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.is_not_found() => return Ok(None),
                // It was replaced while it was read. Texts only grow, so the rest follows.
                Err(error) if error.is_conflict() && conflicts < CONFLICTS_MAX => conflicts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn copy_once(
        &self,
        name: &ObjectName,
        start: &mut u64,
        out: &mut dyn Write,
    ) -> Result<u64, StoreError> {
        let object = self.store.open(name)?;
        let length = object.bytes();
        let mut chunk = vec![0; CHUNK_BYTES];
        while *start < length {
            let bytes = usize::try_from(length - *start)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            object.read_at(*start, &mut chunk[..bytes])?;
            let written = out.write_all(&chunk[..bytes]).and_then(|()| out.flush());
            written.map_err(|cause| StoreError::Settings {
                operation: "write",
                location: "the output".to_owned(),
                cause: cause.to_string(),
            })?;
            *start += bytes as u64;
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use ronde_store::{Address, RemoteSettings, StoreExt};

    use super::*;

    #[test]
    fn a_text_is_read_once_across_its_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Folder(dir.path().to_owned());
        let store = ronde_store::open(&address, &RemoteSettings::default()).unwrap();
        let put = |name: &str, text: &str| {
            let name = ObjectName::new(name).unwrap();
            store.put(&name, text.as_bytes()).unwrap();
        };
        let log = || StoredLog::new(Arc::clone(&store), "x.1.log".to_owned(), "x.log".to_owned());
        let (mut reader, mut out) = (log(), Vec::new());
        assert!(!reader.read(&mut out).unwrap(), "there is no text yet");
        put("x.log", "one\n");
        assert!(reader.read(&mut out).unwrap());
        put("x.log", "one\ntwo\n");
        assert!(reader.read(&mut out).unwrap());
        // The text grew once more, and was rotated.
        put("x.1.log", "one\ntwo\nthree\n");
        put("x.log", "four\n");
        assert!(reader.read(&mut out).unwrap());
        assert!(reader.read(&mut out).unwrap());
        let expected = "one\ntwo\nthree\nfour\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut whole = Vec::new();
        log().read(&mut whole).unwrap();
        assert_eq!(String::from_utf8(whole).unwrap(), expected);
    }
}
