//! The run file of a run as flat keys, and the masking of secrets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The name of the resolved run file in the folder of a run.
const RUN_FILE: &str = "run.toml";
/// Largest run file that is read.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;
/// Words in the name of a key whose value is secret.
const SECRET_WORDS: [&str; 6] = [
    "token",
    "secret",
    "password",
    "credential",
    "access_key",
    "passphrase",
];
/// The text instead of a secret.
const MASK: &str = "•••";

/// Reads the run file of a run as values by keys such as `train.epochs`, with masked secrets. A run that is under way has none
/// yet, and no keys.
///
/// # Errors
/// A message: the file cannot be read, is too long or not valid.
pub fn flat_settings(folder: &Path) -> Result<BTreeMap<String, String>, String> {
    let failed = |cause: String| format!("cannot read {RUN_FILE}: {cause}");
    let mut text = String::new();
    let read = File::open(folder.join(RUN_FILE))
        .and_then(|file| file.take(RUN_FILE_BYTES_MAX).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read.map_err(|error| failed(error.to_string()))?,
    };
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| failed(error.message().to_owned()))?;
    let mut flat = BTreeMap::new();
    for (key, value) in &table {
        flatten(key, value, &mut flat);
    }
    Ok(flat)
}

fn flatten(key: &str, value: &toml::Value, flat: &mut BTreeMap<String, String>) {
    let last = key.rsplit('.').next().unwrap_or(key).to_lowercase();
    if SECRET_WORDS.iter().any(|word| last.contains(word)) {
        flat.insert(key.to_owned(), MASK.to_owned());
        return;
    }
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                flatten(&format!("{key}.{name}"), value, flat);
            }
        }
        toml::Value::Array(values) if values.iter().any(toml::Value::is_table) => {
            for (at, value) in values.iter().enumerate() {
                flatten(&format!("{key}[{at}]"), value, flat);
            }
        }
        value => drop(flat.insert(key.to_owned(), masked(&value.to_string()))),
    }
}

/// Masks the credentials of all addresses in a text: the user and password before the host, and the query, which may have
/// a signature.
#[must_use]
pub fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let is_end = |sign: char| sign.is_whitespace() || "\"'`<>,".contains(sign);
        let end = after.find(is_end).unwrap_or(after.len());
        let (address, following) = after.split_at(end);
        let host_end = address.find(['/', '?']).unwrap_or(address.len());
        let host_start = match address[..host_end].rfind('@') {
            Some(at) => {
                out.push_str(MASK);
                at
            }
            None => 0,
        };
        match address.find('?') {
            Some(query) => {
                out.push_str(&address[host_start..=query]);
                out.push_str(MASK);
            }
            None => out.push_str(&address[host_start..]),
        }
        rest = following;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_addresses_are_masked() {
        for (text, expected) in [
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            ("https://user:pass@host/x?sig=1", "https://•••@host/x?•••"),
            ("az://a@b@c/d", "az://•••@c/d"),
            (
                "cannot read `http://u@h`: http://k/?q=1, twice",
                "cannot read `http://•••@h`: http://k/?•••, twice",
            ),
            ("://", "://"),
            ("a@b is no address", "a@b is no address"),
            ("x://é@h y", "x://•••@h y"),
        ] {
            assert_eq!(masked(text), expected);
        }
    }

    #[test]
    fn a_run_file_is_flat_and_has_no_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join(RUN_FILE), text).unwrap();
        write(
            "version = 1\n[run]\nname = 'x'\n[data]\nurl = 'https://u:p@h/d'\nsizes = [1, 2]\n\
             [data.login]\nsecret_access_key = 'abc'\n[[train.groups]]\nrate = 0.5\n",
        );
        let flat = flat_settings(dir.path()).unwrap();
        let text = format!("{flat:?}");
        assert!(!text.contains("abc") && !text.contains("u:p"), "{text}");
        assert_eq!(flat["run.name"], "\"x\"");
        assert_eq!(flat["data.sizes"], "[1, 2]");
        assert_eq!(flat["train.groups[0].rate"], "0.5");
        for broken in ["= =", "\u{0}"] {
            write(broken);
            let error = flat_settings(dir.path()).unwrap_err();
            assert!(error.starts_with("cannot read run.toml: "), "{error}");
        }
        std::fs::remove_file(dir.path().join(RUN_FILE)).unwrap();
        assert_eq!(flat_settings(dir.path()), Ok(BTreeMap::new()));
    }
}
