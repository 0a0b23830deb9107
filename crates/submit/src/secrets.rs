//! What must not leave this machine with a job: files that look like credentials, and addresses with a password or a signature.
//! Names and contents are examined; a text without these marks may still have a secret.

use std::io::Read;
use std::path::Path;

use crate::error::SubmitError;

/// The bytes of a file that are examined.
pub(crate) const HEAD_BYTES: u64 = 64 << 10;
/// The largest number of files of a folder that a tool uploads.
const FILES_MAX: usize = 100_000;
/// Names of files with credentials.
const NAMES: [&str; 15] = [
    ".env",
    ".git-credentials",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    ".dockerconfigjson",
    "admin.conf",
    "application_default_credentials.json",
    "client_secret.json",
    "credentials",
    "credentials.json",
    "kubeconfig",
    "service-account.json",
];
/// Endings of names of keys, key stores and files with variables.
const ENDINGS: [&str; 10] = [
    "env",
    "jks",
    "kdbx",
    "key",
    "keytab",
    "kubeconfig",
    "p12",
    "pem",
    "pfx",
    "ppk",
];
/// Folders in which tools keep credentials.
const FOLDERS: [&str; 7] = [
    ".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".ssh",
];
/// Parameters of addresses that are secrets, in lower case.
const PARAMETERS: [&str; 9] = [
    "sig=",
    "x-amz-signature=",
    "x-amz-security-token=",
    "x-goog-signature=",
    "signature=",
    "access_token=",
    "token=",
    "password=",
    "api_key=",
];
/// Parts of texts that are followed by a secret.
const MARKS: [(&str, &str); 4] = [
    ("AccountKey=", "the key of a storage account"),
    ("SharedAccessSignature=", "a shared access signature"),
    ("PRIVATE KEY-----", "a private key"),
    ("aws_secret_access_key", "a secret key of AWS"),
];
/// The next action for all of them.
const HELP: &str = "give it to the job where it runs, as a variable that the programs there read: on Kubernetes a Secret, with `--env-from \
                    SECRET` or `env_secrets` of the target; on other hosts the environment of the user";

/// Refuses a file that looks like a credential. `inside` is its path below the folder of the run file, `head` its first bytes.
pub(crate) fn check_file(base: &Path, inside: &Path, head: &[u8]) -> Result<(), SubmitError> {
    match by_name(inside).or_else(|| by_contents(head)) {
        None => Ok(()),
        Some(kind) => Err(SubmitError::invalid(
            format!(
                "cannot send {}: it looks like {kind}",
                base.join(inside).display()
            ),
            format!("leave it out of the files that the run names; {HELP}"),
        )),
    }
}

/// Refuses a text with a secret inside, such as a run file. `what` names it in the message, which does not repeat the secret.
///
/// # Errors
/// The text has an address with a password or a signature, or a key.
pub fn check_no_secret(what: &str, text: &str) -> Result<(), SubmitError> {
    for (number, line) in text.lines().enumerate() {
        if let Some(kind) = in_line(line) {
            return Err(SubmitError::invalid(
                format!("cannot send {what}: line {} has {kind}", number + 1),
                format!("remove it; {HELP}"),
            ));
        }
    }
    Ok(())
}

/// Refuses a folder that a tool uploads completely, if there is a file in it that looks like a credential. Hidden folders and
/// results are examined, too.
///
/// # Errors
/// There is such a file, or the folder cannot be read.
pub fn check_uploaded_folder(folder: &Path) -> Result<(), SubmitError> {
    let mut left = vec![folder.to_owned()];
    let mut count = 0;
    while let Some(below) = left.pop() {
        for entry in std::fs::read_dir(&below).map_err(SubmitError::file("read", &below))? {
            let entry = entry.map_err(SubmitError::file("read", &below))?;
            let path = entry.path();
            let kind = entry
                .file_type()
                .map_err(SubmitError::file("read", &path))?;
            count += 1;
            if count > FILES_MAX {
                return Err(SubmitError::invalid(
                    format!(
                        "cannot examine {}: it has more than {FILES_MAX} files",
                        folder.display()
                    ),
                    "write the document to a folder with the files of the run alone",
                ));
            }
            if kind.is_dir() {
                left.push(path);
                continue;
            }
            check_inside(folder, &path)?;
            let inside = path.strip_prefix(folder).unwrap_or(&path);
            check_file(folder, inside, &head(&path)?)?;
        }
    }
    Ok(())
}

/// Returns the first bytes of a file; of something else, such as a socket, none.
pub(crate) fn head(path: &Path) -> Result<Vec<u8>, SubmitError> {
    let mut bytes = Vec::new();
    let found = std::fs::metadata(path).map_err(SubmitError::file("read", path))?;
    if found.is_file() {
        let file = std::fs::File::open(path).map_err(SubmitError::file("read", path))?;
        file.take(HEAD_BYTES)
            .read_to_end(&mut bytes)
            .map_err(SubmitError::file("read", path))?;
    }
    Ok(bytes)
}

/// Refuses a path that leads out of a folder, by links or by `..`.
pub(crate) fn check_inside(folder: &Path, path: &Path) -> Result<(), SubmitError> {
    let whole = |path: &Path| std::fs::canonicalize(path).map_err(SubmitError::file("read", path));
    let (folder, found) = (whole(folder)?, whole(path)?);
    match found.starts_with(&folder) {
        true => Ok(()),
        false => Err(SubmitError::invalid(
            format!(
                "cannot send {}: it leads out of the folder of the run file, to {}",
                path.display(),
                found.display()
            ),
            "copy the file into that folder, or name the data by an address, or by an absolute path that exists on the hosts",
        )),
    }
}

fn by_name(inside: &Path) -> Option<&'static str> {
    let mut names = inside
        .iter()
        .map(|name| name.to_string_lossy().to_lowercase());
    let file = names.next_back()?;
    if names.any(|folder| FOLDERS.contains(&folder.as_str())) {
        return Some("a file with credentials, by its folder");
    }
    let ending = file.rsplit_once('.').map(|(_, ending)| ending);
    // `id_rsa`, but not a table such as `id_map.csv`.
    let is_identity = file.starts_with("id_") && ending.is_none_or(|ending| ending == "pub");
    let is_named = NAMES.contains(&file.as_str())
        || ending.is_some_and(|ending| ENDINGS.contains(&ending))
        || file.starts_with(".env.")
        || file.starts_with("kubeconfig")
        || is_identity;
    is_named.then_some("a file with credentials, by its name")
}

fn by_contents(head: &[u8]) -> Option<&'static str> {
    let end = head
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(head.len());
    let text = String::from_utf8_lossy(&head[..end]);
    let trimmed = text.trim_start();
    let has_line = |start: &str| {
        text.lines()
            .any(|line| line.trim_start().starts_with(start))
    };
    let compact: String = match trimmed.starts_with('{') {
        true => text
            .chars()
            .filter(|letter| !letter.is_whitespace())
            .collect(),
        false => String::new(),
    };
    let is_kubeconfig = has_line("kind: Config") && has_line("users:")
        || has_line("client-key-data:")
        || compact.contains("\"kind\":\"Config\"") && compact.contains("\"users\":");
    let is_account =
        compact.contains("\"type\":\"service_account\"") && compact.contains("\"private_key\"");
    if is_kubeconfig {
        return Some("a kubeconfig file");
    }
    if trimmed.starts_with("-----BEGIN") && trimmed.contains("PRIVATE KEY-----") {
        return Some("a private key");
    }
    if is_account || has_line("aws_secret_access_key") {
        return Some("a file with credentials of a cloud");
    }
    None
}

/// Returns what kind of secret a line has.
fn in_line(line: &str) -> Option<&'static str> {
    if let Some((_, kind)) = MARKS.iter().find(|(mark, _)| line.contains(mark)) {
        return Some(kind);
    }
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        let scheme = before
            .rsplit(|letter: char| !letter.is_ascii_alphanumeric())
            .next();
        let end = after.find(|letter: char| letter.is_whitespace() || "\"'`<>".contains(letter));
        let address = &after[..end.unwrap_or(after.len())];
        let server = address.split(['/', '?', '#']).next().unwrap_or_default();
        if let Some((user, _)) = server.rsplit_once('@') {
            let is_web = matches!(scheme, Some("http" | "https"));
            if is_web
                || user
                    .split_once(':')
                    .is_some_and(|(_, password)| !password.is_empty())
            {
                return Some("an address with a password");
            }
        }
        let query = address.split_once('?').map_or("", |(_, query)| query);
        let is_secret = |part: &str| {
            let part = part.to_ascii_lowercase();
            PARAMETERS.iter().any(|name| part.starts_with(name))
        };
        if query.split(['&', '#']).any(is_secret) {
            return Some("an address with a signature");
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_credentials_are_known_by_name_or_by_contents() {
        for name in [
            "kubeconfig",
            "kubeconfig-prod.yaml",
            "x/prod.kubeconfig",
            ".env",
            ".env.local",
            "prod.env",
            "id_rsa",
            "keys/id_ed25519",
            "id_rsa.pub",
            "server.pem",
            "TLS.KEY",
            ".netrc",
            ".aws/config",
            "home/.azure/x.json",
            ".kube/config",
            "credentials.json",
        ] {
            assert!(by_name(Path::new(name)).is_some(), "{name}");
        }
        for name in [
            "run.toml",
            "data/train.csv",
            "id_map.csv",
            "environment.csv",
            "keys.csv",
            "tokenizer.json",
            "config.json",
        ] {
            assert!(by_name(Path::new(name)).is_none(), "{name}");
        }
        for text in [
            "apiVersion: v1\nkind: Config\nclusters: []\nusers:\n- name: admin\n",
            "{\"kind\": \"Config\", \"users\": []}",
            "\n-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
            "[default]\naws_secret_access_key = x\n",
            "{ \"type\": \"service_account\",\n \"private_key\": \"x\" }",
        ] {
            assert!(by_contents(text.as_bytes()).is_some(), "{text}");
        }
        for text in [
            "1,2,3\n",
            "kind: Config of a game\n",
            "{\"users\": 3}",
            "a PRIVATE KEY----- in prose",
        ] {
            assert!(by_contents(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn secrets_in_texts_are_found_and_not_repeated() {
        for text in [
            "mlflow = \"https://me:hunter2@tracking.example.com\"",
            "mlflow = \"https://ghp_hunter2@example.com/\"",
            "uri = 'postgres://u:hunter2@db/x'",
            "train = \"https://x.blob.core.windows.net/c/a.csv?sv=1&sig=hunter2\"",
            "# https://b.s3.amazonaws.com/a?X-Amz-Signature=hunter2",
            "DefaultEndpointsProtocol=https;AccountKey=hunter2;",
        ] {
            let refused = check_no_secret("run.toml", &format!("a = 1\n{text}\n"));
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("run.toml: line 2 has"), "{refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
            assert!(refused.contains("--env-from"), "{refused}");
        }
        for text in [
            "train = \"s3://bucket/train-*\"",
            "url = \"https://example.com/a?version=2\"",
            "repository = \"ssh://git@example.com/x\"",
            "mail = \"a@b.c\"",
        ] {
            check_no_secret("run.toml", text).unwrap();
        }
    }

    #[test]
    fn a_folder_that_is_uploaded_completely_has_no_credentials_and_no_links_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("code");
        std::fs::create_dir_all(folder.join("a")).unwrap();
        std::fs::write(folder.join("a/run.toml"), "x = 1\n").unwrap();
        std::fs::write(dir.path().join("outside"), "x").unwrap();
        check_uploaded_folder(&folder).unwrap();
        std::os::unix::fs::symlink("../../outside", folder.join("a/link")).unwrap();
        let refused = check_uploaded_folder(&folder).unwrap_err().to_string();
        assert!(refused.contains("leads out of the folder"), "{refused}");
        std::fs::remove_file(folder.join("a/link")).unwrap();
        std::fs::write(folder.join("a/.env"), "X=1\n").unwrap();
        let refused = check_uploaded_folder(&folder).unwrap_err().to_string();
        assert!(refused.contains("a/.env"), "{refused}");
    }
}
