//! [`ClusterAddress`]: the server, the authority and the credentials of a cluster, from kubeconfig files or from the service
//! account of a pod.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use serde::Deserialize;

use super::{KubernetesAccess, KubernetesSettings};
use crate::error::SubmitError;
use crate::limited;

/// The largest kubeconfig file in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Time limit for the program that prints credentials.
const PROGRAM_MAX: Duration = Duration::from_secs(60);
/// The folder with the credentials of a service account, in each of its pods.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The namespace of a context that names none.
const NAMESPACE: &str = "default";

/// How requests are authenticated.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum ClusterLogin {
    /// A bearer token.
    Token(String),
    /// A user name and a password.
    Password(String, String),
}

/// A cluster and the credentials of a user.
pub(super) struct ClusterAddress {
    /// The name for messages.
    pub(super) title: String,
    /// The address of the API server.
    pub(super) server: String,
    /// The certificates of its authority (PEM); `None`: those that this machine trusts.
    pub(super) authority: Option<Vec<u8>>,
    /// Whether the server's certificate is not checked, because the kubeconfig requests it.
    pub(super) is_unchecked: bool,
    /// The name of the server's certificate, if it is not that of its address.
    pub(super) certificate_name: Option<String>,
    /// The address of the proxy through which the server is reached.
    pub(super) proxy: Option<String>,
    /// The certificate of the user with its key (PEM).
    pub(super) identity: Option<Vec<u8>>,
    pub(super) login: Option<ClusterLogin>,
    pub(super) namespace: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: Option<String>,
    clusters: Vec<Named<Cluster>>,
    contexts: Vec<Named<Context>>,
    users: Vec<Named<User>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "cluster", alias = "context", alias = "user")]
    value: T,
}

#[derive(Deserialize, Default, Clone)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<CredentialProgram>,
}

/// A program that prints credentials, such as those of cloud providers.
#[derive(Deserialize, Clone)]
struct CredentialProgram {
    command: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<ProgramVariable>>,
    #[serde(rename = "apiVersion", default)]
    version: Option<String>,
}

#[derive(Deserialize, Clone)]
struct ProgramVariable {
    name: String,
    value: String,
}

/// The answer of a [`CredentialProgram`].
#[derive(Deserialize)]
struct ExecCredential {
    status: ExecStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl ClusterAddress {
    /// Finds the cluster of a target.
    pub(super) fn find(
        settings: &KubernetesSettings,
        access: &KubernetesAccess,
    ) -> Result<Self, SubmitError> {
        let files: Vec<&PathBuf> = match &settings.kubeconfig {
            Some(file) => vec![file],
            None => access
                .kubeconfig
                .iter()
                .filter(|file| file.exists())
                .collect(),
        };
        if files.is_empty() {
            return match &access.in_cluster {
                Some(server) => Self::of_pod(server, Path::new(ACCOUNT)),
                None => Err(SubmitError::invalid(
                    "there is no kubeconfig file",
                    "set `kubeconfig` of the target, or the variable KUBECONFIG",
                )),
            };
        }
        let mut merged = Kubeconfig::default();
        for file in &files {
            merged.add(Kubeconfig::read(file)?);
        }
        let listed: Vec<String> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let found = merged.address(settings.context.as_deref());
        found.map_err(|problem| unusable(&listed.join(":"), problem))
    }

    /// Returns the API server of the pod in which this process runs.
    fn of_pod(server: &str, account: &Path) -> Result<Self, SubmitError> {
        let read = |name: &str| {
            let path = account.join(name);
            std::fs::read(&path).map_err(SubmitError::file("read", &path))
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        Ok(Self {
            title: "this cluster".to_owned(),
            server: server.to_owned(),
            authority: Some(read("ca.crt")?),
            is_unchecked: false,
            certificate_name: None,
            proxy: None,
            identity: None,
            login: Some(ClusterLogin::Token(text(read("token")?))),
            namespace: read("namespace").map_or_else(|_| NAMESPACE.to_owned(), text),
        })
    }
}

impl Kubeconfig {
    /// Reads a file; its paths are relative to its folder.
    fn read(path: &Path) -> Result<Self, SubmitError> {
        let mut read =
            Self::parse(path).map_err(|problem| unusable(&path.display().to_string(), problem))?;
        let base = path.parent().unwrap_or(Path::new("."));
        let resolve = |file: &mut Option<PathBuf>| {
            if let Some(file) = file {
                *file = base.join(&*file);
            }
        };
        for cluster in &mut read.clusters {
            resolve(&mut cluster.value.certificate_authority);
        }
        for user in &mut read.users {
            resolve(&mut user.value.client_certificate);
            resolve(&mut user.value.client_key);
            resolve(&mut user.value.token_file);
            // A program without a folder is found by the search path.
            if let Some(program) = &mut user.value.exec
                && program.command.contains('/')
            {
                program.command = base.join(&program.command).display().to_string();
            }
        }
        Ok(read)
    }

    /// Reads a file as it is written. The error is a sentence.
    fn parse(path: &Path) -> Result<Self, String> {
        let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if found.len() > FILE_BYTES_MAX {
            return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        serde_saphyr::from_str(&text).map_err(|error| first_line(&error.to_string()).to_owned())
    }

    /// Adds what another file has; the values of earlier files count.
    fn add(&mut self, other: Self) {
        fn extend<T>(all: &mut Vec<Named<T>>, more: Vec<Named<T>>) {
            for new in more {
                if all.iter().all(|old| old.name != new.name) {
                    all.push(new);
                }
            }
        }
        let is_set = |name: &String| !name.is_empty();
        self.current_context = self
            .current_context
            .take()
            .filter(is_set)
            .or(other.current_context);
        extend(&mut self.clusters, other.clusters);
        extend(&mut self.contexts, other.contexts);
        extend(&mut self.users, other.users);
    }

    /// Returns the cluster of a context. The error is a sentence.
    fn address(&self, context: Option<&str>) -> Result<ClusterAddress, String> {
        fn find<'a, T>(what: &str, all: &'a [Named<T>], name: &str) -> Result<&'a T, String> {
            let found = all.iter().find(|entry| entry.name == name);
            let names: Vec<&str> = all.iter().map(|entry| entry.name.as_str()).collect();
            let missing = || format!("there is no {what} `{name}`; it has: {}", names.join(", "));
            found.map(|entry| &entry.value).ok_or_else(missing)
        }
        let name = context
            .or(self.current_context.as_deref())
            .unwrap_or_default();
        let context = find("context", &self.contexts, name)?;
        let cluster = find("cluster", &self.clusters, &context.cluster)?;
        let user = match context.user.as_str() {
            "" => User::default(),
            user => find("user", &self.users, user)?.clone(),
        };
        let set = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let user = user.with_program()?;
        Ok(ClusterAddress {
            title: format!("Kubernetes, context {name}"),
            server: cluster.server.clone(),
            authority: content(
                &cluster.certificate_authority_data,
                &cluster.certificate_authority,
            )?,
            is_unchecked: cluster.insecure_skip_tls_verify,
            certificate_name: set(&cluster.tls_server_name),
            proxy: set(&cluster.proxy_url),
            identity: user.identity()?,
            login: user.login()?,
            namespace: context
                .namespace
                .clone()
                .unwrap_or_else(|| NAMESPACE.to_owned()),
        })
    }
}

impl User {
    /// Runs the program for credentials, if there is one, and returns the user with its output.
    fn with_program(self) -> Result<Self, String> {
        let Some(program) = &self.exec else {
            return Ok(self);
        };
        let status = program.run()?;
        let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
        Ok(Self {
            token: status.token,
            client_certificate_data: status.client_certificate_data.map(encode),
            client_key_data: status.client_key_data.map(encode),
            ..Self::default()
        })
    }

    fn identity(&self) -> Result<Option<Vec<u8>>, String> {
        let certificate = content(&self.client_certificate_data, &self.client_certificate)?;
        let key = content(&self.client_key_data, &self.client_key)?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some([certificate, b"\n".to_vec(), key].concat())),
            _ => Err("the user has a client certificate or a client key, but not both".to_owned()),
        }
    }

    fn login(&self) -> Result<Option<ClusterLogin>, String> {
        if let Some(file) = &self.token_file {
            let text = std::fs::read_to_string(file);
            let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            return Ok(Some(ClusterLogin::Token(text.trim().to_owned())));
        }
        let password = || {
            let (user, password) = (self.username.clone()?, self.password.clone()?);
            Some(ClusterLogin::Password(user, password))
        };
        Ok(self
            .token
            .clone()
            .map(ClusterLogin::Token)
            .or_else(password))
    }
}

impl CredentialProgram {
    /// Runs the program. The error is a sentence.
    fn run(&self) -> Result<ExecStatus, String> {
        let failed =
            |problem: String| format!("`{}`, which prints credentials: {problem}", self.command);
        let version = self
            .version
            .as_deref()
            .unwrap_or("client.authentication.k8s.io/v1");
        let info = serde_json::json!({
            "apiVersion": version, "kind": "ExecCredential", "spec": { "interactive": false },
        });
        let output = tempfile::tempfile().map_err(|error| failed(error.to_string()))?;
        let shared = output
            .try_clone()
            .map_err(|error| failed(error.to_string()))?;
        let variables = self
            .env
            .iter()
            .flatten()
            .map(|variable| (&variable.name, &variable.value));
        let mut child = Command::new(&self.command)
            .args(self.args.iter().flatten())
            .envs(variables)
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(Stdio::null())
            .stdout(shared)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        match limited::wait(&mut child, PROGRAM_MAX) {
            Some(0) => {}
            Some(code) => return Err(failed(format!("exit code {code}"))),
            None => {
                return Err(failed(format!(
                    "no answer within {} s",
                    PROGRAM_MAX.as_secs()
                )));
            }
        }
        let text = read_all(output).map_err(|error| failed(error.to_string()))?;
        let answer: Result<ExecCredential, _> = serde_json::from_slice(&text);
        // The error of the parser would show a part of the credentials.
        answer
            .map(|answer| answer.status)
            .map_err(|_| failed("its output is not an ExecCredential".to_owned()))
    }
}

fn read_all(mut file: File) -> std::io::Result<Vec<u8>> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns encoded bytes, or those of a file.
fn content(data: &Option<String>, file: &Option<PathBuf>) -> Result<Option<Vec<u8>>, String> {
    match (data.as_deref().filter(|data| !data.is_empty()), file) {
        (Some(data), _) => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(data.trim());
            let decoded = decoded.map_err(|_| "a certificate or key is not base64".to_owned());
            decoded.map(Some)
        }
        (None, Some(file)) => {
            let bytes = std::fs::read(file);
            bytes
                .map(Some)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))
        }
        (None, None) => Ok(None),
    }
}

/// Returns the error of a file, or of several that are used together.
fn unusable(files: &str, problem: String) -> SubmitError {
    SubmitError::invalid(
        format!("cannot use kubeconfig {files}: {problem}"),
        "correct the file, or set `kubeconfig` and `context` of the target; `kubectl config get-contexts` shows the contexts",
    )
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
apiVersion: v1
kind: Config
current-context: lab
clusters:
- name: lab
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority: ca.pem
- name: cloud
  cluster:
    server: https://cloud.example.com
    certificate-authority-data: Y2E=
    proxy-url: http://proxy:3128
    tls-server-name: ""
contexts:
- name: lab
  context: {cluster: lab, user: me, namespace: research}
- name: cloud
  context: {cluster: cloud, user: robot}
- name: broken
  context: {cluster: none, user: me}
users:
- name: me
  user: {token: secret-token}
- name: robot
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./login.sh
      args: [get-token]
      env: [{name: REGION, value: eu}]
      interactiveMode: Never
"#;

    fn find(folder: &Path, context: Option<&str>) -> Result<ClusterAddress, SubmitError> {
        let settings = KubernetesSettings {
            context: context.map(str::to_owned),
            ..KubernetesSettings::default()
        };
        let access = KubernetesAccess {
            kubeconfig: vec![folder.join("missing"), folder.join("config")],
            in_cluster: None,
        };
        ClusterAddress::find(&settings, &access)
    }

    #[test]
    fn contexts_have_their_server_authority_credentials_and_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("config", FILE);
        write("ca.pem", "the authority");
        write(
            "login.sh",
            "#!/bin/sh\necho \"{\\\"status\\\": {\\\"token\\\": \\\"$1-$REGION\\\"}}\"\n",
        );
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path().join("login.sh"), mode).unwrap();
        let lab = find(dir.path(), None).unwrap();
        assert_eq!(lab.server, "https://10.0.0.1:6443");
        assert_eq!(lab.authority.as_deref(), Some(&b"the authority"[..]));
        assert_eq!(lab.namespace, "research");
        assert!(matches!(lab.login, Some(ClusterLogin::Token(token)) if token == "secret-token"));
        let cloud = find(dir.path(), Some("cloud")).unwrap();
        assert_eq!(cloud.authority.as_deref(), Some(&b"ca"[..]));
        assert_eq!(cloud.namespace, "default");
        assert_eq!(cloud.proxy.as_deref(), Some("http://proxy:3128"));
        assert_eq!(cloud.certificate_name, None);
        assert!(matches!(cloud.login, Some(ClusterLogin::Token(token)) if token == "get-token-eu"));
        for (context, problem) in [
            (
                "other",
                "there is no context `other`; it has: lab, cloud, broken",
            ),
            ("broken", "there is no cluster `none`"),
        ] {
            let error = find(dir.path(), Some(context)).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
        write("config", "clusters: [");
        assert!(find(dir.path(), None).is_err());
        std::fs::remove_file(dir.path().join("config")).unwrap();
        let none = find(dir.path(), None).err().unwrap().to_string();
        assert!(none.contains("no kubeconfig"), "{none}");
    }

    #[test]
    fn a_pod_uses_its_service_account() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("ca.crt", "ca"), ("token", "t\n"), ("namespace", "jobs")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let address = ClusterAddress::of_pod("https://10.0.0.1:443", dir.path()).unwrap();
        assert_eq!(address.namespace, "jobs");
        assert!(matches!(address.login, Some(ClusterLogin::Token(token)) if token == "t"));
    }
}
