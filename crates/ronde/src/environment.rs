//! The only module that reads environment variables: their names and meanings.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_cluster::{
    FixedRank, LAUNCHER_PROCESS, PMI_FD, StartDecision, exchange_by_pmi, launcher_process,
    pmi_socket,
};
use ronde_core::{Rank, WorldSize};
use ronde_data::OpenContext;
use ronde_store::RemoteSettings;
use ronde_train::config::ENVIRONMENT_PREFIX;

pub use ronde_cluster::{RONDE_RENDEZVOUS, RONDE_STARTED_BY};

pub use ronde_cluster::variables::{
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RANK, RONDE_CONTROL, RONDE_JOB,
    RONDE_RANK, RONDE_ROLE, RONDE_TOKEN, RONDE_WORKER, RONDE_WORLD_SIZE, WORLD_SIZE,
};

/// Number of threads of a rank's rayon thread pool.
pub const RAYON_NUM_THREADS: &str = "RAYON_NUM_THREADS";
/// Number of threads of a rank's OpenMP thread pool.
pub const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";

/// Settings of glibc, including its allocator.
pub const GLIBC_TUNABLES: &str = "GLIBC_TUNABLES";

/// Folder for the flight records that a program's groups write when they fail.
pub const RONDE_FLIGHT: &str = "RONDE_FLIGHT";

/// A file with the secret of a job that another launcher has started, instead of [`RONDE_TOKEN`].
pub const RONDE_TOKEN_FILE: &str = "RONDE_TOKEN_FILE";
/// Allows unencrypted connections between the hosts of a job that another launcher has started, on a trusted network: `1`.
pub const RONDE_ALLOW_PLAIN: &str = "RONDE_ALLOW_PLAIN";

/// The token for an MLflow server.
pub const MLFLOW_TRACKING_TOKEN: &str = "MLFLOW_TRACKING_TOKEN";
/// The user name for an MLflow server.
pub const MLFLOW_TRACKING_USERNAME: &str = "MLFLOW_TRACKING_USERNAME";
/// The password for an MLflow server.
pub const MLFLOW_TRACKING_PASSWORD: &str = "MLFLOW_TRACKING_PASSWORD";

/// The maximum size of a file with settings of a platform.
const PLATFORM_FILE_BYTES_MAX: u64 = 1 << 20;

/// How this process became a worker of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEnvironment {
    /// A supervisor of ronde has started it.
    Supervised(SupervisedWorker),
    /// Another launcher has started it and assigned its rank.
    Fixed {
        /// The rank, and where the ranks meet.
        rank: FixedRank,
        /// How that was found.
        decision: StartDecision,
    },
}

/// The variables that a supervisor sets for a worker process.
#[derive(Clone, PartialEq, Eq)]
pub struct SupervisedWorker {
    /// Address of the supervisor.
    pub control: SocketAddr,
    /// Secret of the job.
    pub token: String,
    /// Rank of this process.
    pub rank: Rank,
    /// Total number of worker processes.
    pub world_size: WorldSize,
    /// Name of the job.
    pub job: String,
    /// Identifier of this process.
    pub worker: u64,
}

impl std::fmt::Debug for SupervisedWorker {
    /// Formats everything except the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "rank {} of {} of job {} at {}",
            self.rank, self.world_size, self.job, self.control
        )
    }
}

impl WorkerEnvironment {
    /// Reads the variables of this process, or returns `None` when no launcher has made it a worker.
    ///
    /// # Errors
    /// A message that names the missing, invalid or contradicting variables.
    pub fn read() -> Result<Option<Self>, String> {
        match Self::of(&of_starters)? {
            Some(Self::Fixed { rank, decision }) if decision.exchanges => {
                let rank = exchanged(rank)?;
                Ok(Some(Self::Fixed { rank, decision }))
            }
            found => Ok(found),
        }
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Self>, String> {
        if variable(RONDE_CONTROL).is_none() {
            let decision = StartDecision::of(variable).map_err(|error| error.to_string())?;
            let rank = decision
                .rank
                .clone()
                .map(|rank| with_token_file(with_node_address(rank, &decision), variable));
            let rank = rank.transpose()?;
            return Ok(rank.map(|rank| Self::Fixed { rank, decision }));
        }
        let variables = WorkerVariables { variable };
        let world_size = variables.parse(RONDE_WORLD_SIZE, "a number of workers")?;
        let rank = variables.parse(RONDE_RANK, "a rank")?;
        if rank >= world_size {
            return Err(format!(
                "{RONDE_RANK}={rank} does not fit {RONDE_WORLD_SIZE}={world_size}"
            ));
        }
        Ok(Some(Self::Supervised(SupervisedWorker {
            control: variables.parse(RONDE_CONTROL, "an address like 127.0.0.1:4711")?,
            token: variables.parse(RONDE_TOKEN, "the secret of the job")?,
            rank: Rank(rank),
            world_size: WorldSize::new(world_size)
                .ok_or_else(|| format!("{RONDE_WORLD_SIZE} must not be 0"))?,
            job: variables.parse(RONDE_JOB, "the name of the job")?,
            worker: variables.parse(RONDE_WORKER, "the id of a process")?,
        })))
    }
}

/// Returns the rank with the secret of [`RONDE_TOKEN_FILE`], if that is set.
fn with_token_file(
    rank: FixedRank,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<FixedRank, String> {
    let Some(path) = variable(RONDE_TOKEN_FILE).filter(|path| !path.is_empty()) else {
        return Ok(rank);
    };
    let path = PathBuf::from(path);
    let failed = |problem: String| {
        format!(
            "cannot read {RONDE_TOKEN_FILE}={}: {problem}",
            path.display()
        )
    };
    if !rank.token.is_empty() {
        return Err(format!(
            "{RONDE_TOKEN} and {RONDE_TOKEN_FILE} are both set: set one of them"
        ));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
    match text.trim() {
        "" => Err(failed("it is empty".to_owned())),
        token => Ok(FixedRank {
            token: token.to_owned(),
            ..rank
        }),
    }
}

/// Returns the rank with the address of rank 0, which all ranks exchange through the process manager of their MPI.
fn exchanged(rank: FixedRank) -> Result<FixedRank, String> {
    let exchange = || {
        let text = read(PMI_FD).and_then(|text| text.into_string().ok());
        let number = text.and_then(|text| text.parse().ok());
        let number = number.ok_or_else(|| std::io::Error::other("it is not a number"))?;
        exchange_by_pmi(pmi_socket(number)?, rank.rank, &rank.rendezvous)
    };
    match exchange() {
        Ok(rendezvous) => Ok(FixedRank { rendezvous, ..rank }),
        Err(error) => Err(format!(
            "cannot exchange the address of rank 0 through {PMI_FD}: {error}\n  \
             help: set {RONDE_RENDEZVOUS}=HOST:PORT for all ranks"
        )),
    }
}

/// Returns how this process was started, for a person.
///
/// # Errors
/// A message that names the missing, invalid or contradicting variables.
pub fn explain_start() -> Result<String, String> {
    if let Some(WorkerEnvironment::Supervised(mine)) = WorkerEnvironment::of(&of_starters)? {
        return Ok(format!(
            "started by ronde: {mine:?}; `ronde train` starts the workers of the run file"
        ));
    }
    let decision = StartDecision::of(&of_starters).map_err(|error| error.to_string())?;
    Ok(decision.explain())
}

/// Returns what the table of other launchers asks for: a variable, a file with settings of a platform, or the process of
/// the launcher.
fn of_starters(name: &str) -> Option<OsString> {
    match name {
        LAUNCHER_PROCESS => Some(launcher_process("PMI_RANK")?.to_string().into()),
        path if path.starts_with('/') => {
            let bytes = ronde_store::read_regular(Path::new(path), PLATFORM_FILE_BYTES_MAX).ok()?;
            Some(String::from_utf8(bytes).ok()?.into())
        }
        name => read(name),
    }
}

/// Replaces the name of a node of Slurm by its address if the system does not know the name.
fn with_node_address(rank: FixedRank, decision: &StartDecision) -> FixedRank {
    use std::net::ToSocketAddrs;

    let is_known = || rank.rendezvous.to_socket_addrs().is_ok();
    match rank.rendezvous.rsplit_once(':') {
        Some((node, port)) if decision.is_slurm && !is_known() => {
            let address = node_address(node);
            let rendezvous =
                address.map(|ip| std::net::SocketAddr::new(ip, port.parse().unwrap_or(0)));
            FixedRank {
                // An unknown name is reported when the ranks meet.
                rendezvous: rendezvous.map_or_else(|| rank.rendezvous.clone(), |at| at.to_string()),
                ..rank
            }
        }
        _ => rank,
    }
}

#[cfg(feature = "cli")]
fn node_address(node: &str) -> Option<std::net::IpAddr> {
    ronde_submit::slurm_node_address(node).ok()
}

#[cfg(not(feature = "cli"))]
fn node_address(_: &str) -> Option<std::net::IpAddr> {
    None
}

/// Returns whether [`RONDE_ALLOW_PLAIN`] is `1`.
#[must_use]
pub fn allows_plain() -> bool {
    read(RONDE_ALLOW_PLAIN).is_some_and(|value| value == "1")
}

/// Returns the variables that override values of the run file: [`ENVIRONMENT_PREFIX`] followed by the key.
#[must_use]
pub fn all() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX))
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect()
}

/// A PEM file of certificate authorities to trust for object stores and web servers, in addition to those of
/// the system. [`AWS_CA_BUNDLE`] is used when this variable is not set.
pub const RONDE_CA_FILE: &str = "RONDE_CA_FILE";
/// The same variable of Amazon's tools.
pub const AWS_CA_BUNDLE: &str = "AWS_CA_BUNDLE";

/// Returns the settings of remote stores from the variables of the providers' tools.
#[must_use]
pub fn store_settings() -> RemoteSettings {
    RemoteSettings {
        ambient: remote_options(),
        authorities: read(RONDE_CA_FILE)
            .or_else(|| read(AWS_CA_BUNDLE))
            .map(PathBuf::from),
        ..RemoteSettings::default()
    }
}

/// Returns the contents of a variable, for an encryption key that a run file refers to.
#[must_use]
pub fn contents(name: &str) -> Option<Vec<u8>> {
    read(name).map(OsString::into_encoded_bytes)
}

/// Returns the settings of S3, Azure and Google: all variables that begin with `AWS_`, `AZURE_` or `GOOGLE_`,
/// in lower case, and the settings in the files of Amazon's tools.
fn remote_options() -> Vec<(String, String)> {
    let mut options = remote_variables();
    let files = crate::aws_files::options(&options, &|name| read(name).map(PathBuf::from));
    options.extend(files);
    options
}

fn remote_variables() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| {
            ["AWS_", "AZURE_", "GOOGLE_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        })
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect()
}

/// Returns the environment of a training process: everything that it needs besides the run file.
#[must_use]
pub fn surroundings() -> ronde_train::checkpoints::ProcessContext {
    ronde_train::checkpoints::ProcessContext {
        variable: contents,
        cache_folder,
        remote: store_settings,
        stop: std::sync::Arc::default(),
    }
}

/// Returns how requests to an MLflow server are authenticated, if a variable is set.
#[cfg(feature = "full")]
#[must_use]
pub fn mlflow_login() -> Option<ronde_store::HttpLogin> {
    use ronde_store::HttpLogin;

    let text = |name| {
        read(name)?
            .into_string()
            .ok()
            .filter(|text| !text.is_empty())
    };
    text(MLFLOW_TRACKING_TOKEN)
        .map(HttpLogin::Token)
        .or_else(|| {
            let password = text(MLFLOW_TRACKING_PASSWORD).unwrap_or_default();
            Some(HttpLogin::Password(
                text(MLFLOW_TRACKING_USERNAME)?,
                password,
            ))
        })
}

/// The number of a job of Slurm.
pub const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
/// The number of the array of Slurm that contains the job as a task; absent for other jobs.
pub const SLURM_ARRAY_JOB_ID: &str = "SLURM_ARRAY_JOB_ID";
/// The name of this node of an allocation of Slurm.
pub const SLURMD_NODENAME: &str = "SLURMD_NODENAME";
/// The number of nodes of an allocation.
pub const SLURM_JOB_NUM_NODES: &str = "SLURM_JOB_NUM_NODES";
/// How often a job of Slurm was queued again; absent the first time.
pub const SLURM_RESTART_COUNT: &str = "SLURM_RESTART_COUNT";

/// Returns the allocation of Slurm that this process belongs to.
///
/// # Errors
/// A message that names the missing or invalid variable.
#[cfg(feature = "cli")]
pub fn slurm_allocation() -> Result<ronde_submit::SlurmAllocation, String> {
    let text = |name: &str| {
        let value = read(name).and_then(|value| value.into_string().ok());
        value.ok_or_else(|| format!("the variable {name} of Slurm is not set"))
    };
    let invalid = |name: &str| format!("the variable {name} of Slurm is not a number");
    Ok(ronde_submit::SlurmAllocation {
        id: text(SLURM_JOB_ID)?
            .parse()
            .map_err(|_| invalid(SLURM_JOB_ID))?,
        array: text(SLURM_ARRAY_JOB_ID).ok().and_then(|id| id.parse().ok()),
        node: text(SLURMD_NODENAME)?,
        nodes: text(SLURM_JOB_NUM_NODES)?
            .parse()
            .map_err(|_| invalid(SLURM_JOB_NUM_NODES))?,
        restarts: match text(SLURM_RESTART_COUNT) {
            Ok(count) => count.parse().map_err(|_| invalid(SLURM_RESTART_COUNT))?,
            Err(_) => 0,
        },
    })
}

/// The index of this pod in its Job of Kubernetes.
#[cfg(feature = "cli")]
pub const JOB_COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";
/// The address of this pod of Kubernetes.
#[cfg(feature = "cli")]
pub const POD_IP: &str = "POD_IP";
/// The name of this pod of Kubernetes.
#[cfg(feature = "cli")]
pub const POD_NAME: &str = "POD_NAME";
/// The kubeconfig files of the user, separated by colons.
#[cfg(feature = "cli")]
pub const KUBECONFIG: &str = "KUBECONFIG";

/// Returns this pod of a job on Kubernetes, whose folder is `results`.
///
/// # Errors
/// A message that names the missing or invalid variable.
#[cfg(feature = "cli")]
pub fn kubernetes_pod(results: &Path) -> Result<ronde_submit::KubernetesPod, String> {
    let text = |name: &str| {
        let value = read(name).and_then(|value| value.into_string().ok());
        value.ok_or_else(|| format!("the variable {name} of the pod is not set"))
    };
    let index = text(JOB_COMPLETION_INDEX)?;
    Ok(ronde_submit::KubernetesPod {
        index: index
            .parse()
            .map_err(|_| format!("the variable {JOB_COMPLETION_INDEX} is not a number"))?,
        name: text(POD_NAME)?,
        address: text(POD_IP)?,
        folders: ronde_submit::PodFolders::default(),
        paths: ronde_submit::JobPaths::new(results),
    })
}

/// The token of a cluster of Ray.
pub const RAY_AUTH_TOKEN: &str = "RAY_AUTH_TOKEN";
/// The file with the token of a cluster of Ray.
pub const RAY_AUTH_TOKEN_PATH: &str = "RAY_AUTH_TOKEN_PATH";
/// The address of the head of the cluster of Ray in which this process runs.
pub const RAY_ADDRESS: &str = "RAY_ADDRESS";

/// Returns where the token of a cluster of Ray is: in `RAY_AUTH_TOKEN`, in the file of `RAY_AUTH_TOKEN_PATH`, or in
/// `~/.ray/auth_token`.
#[cfg(feature = "cli")]
#[must_use]
pub fn ray_access() -> ronde_submit::RayAccess {
    let text = |name: &str| read(name).and_then(|value| value.into_string().ok());
    let file = || read("HOME").map(|home| PathBuf::from(home).join(".ray/auth_token"));
    ronde_submit::RayAccess {
        token: text(RAY_AUTH_TOKEN).filter(|token| !token.is_empty()),
        token_file: read(RAY_AUTH_TOKEN_PATH).map(PathBuf::from).or_else(file),
    }
}

/// Returns the address of the head of the cluster of Ray in which this process runs.
#[must_use]
pub fn ray_head() -> Option<String> {
    read(RAY_ADDRESS).and_then(|value| value.into_string().ok())
}

/// Returns where the settings of clusters of Kubernetes are: the files of `KUBECONFIG`, else `~/.kube/config`, and the
/// service account of this pod.
#[cfg(feature = "cli")]
#[must_use]
pub fn kubernetes_access() -> ronde_submit::KubernetesAccess {
    let files = match read(KUBECONFIG).filter(|value| !value.is_empty()) {
        Some(value) => std::env::split_paths(&value).collect(),
        None => {
            let home = read("HOME").map(PathBuf::from);
            home.map(|home| home.join(".kube/config"))
                .into_iter()
                .collect()
        }
    };
    let text = |name: &str| read(name).and_then(|value| value.into_string().ok());
    let host = text("KUBERNETES_SERVICE_HOST");
    let port = text("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
    let in_cluster = host.map(|host| match host.contains(':') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    });
    ronde_submit::KubernetesAccess {
        kubeconfig: files,
        in_cluster,
    }
}

/// Returns the user's cache folder of ronde: `ronde` in `$XDG_CACHE_HOME`, else in `~/.cache`.
#[must_use]
pub fn cache_folder() -> Option<PathBuf> {
    user_folder("XDG_CACHE_HOME", ".cache")
}

/// Returns the user's folder for the state of ronde, such as the records of submitted jobs: `ronde` in `$XDG_STATE_HOME`,
/// else in `~/.local/state`.
#[must_use]
pub fn state_folder() -> Option<PathBuf> {
    user_folder("XDG_STATE_HOME", ".local/state")
}

/// Returns the user's folder for settings of ronde: `ronde` in `$XDG_CONFIG_HOME`, else in `~/.config`.
#[must_use]
pub fn settings_folder() -> Option<PathBuf> {
    user_folder("XDG_CONFIG_HOME", ".config")
}

/// Returns `ronde` in the folder that a variable names, else in a folder of the user's home.
fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |name| {
        read(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let folder = absolute(variable).or_else(|| Some(absolute("HOME")?.join(in_home)));
    Some(folder?.join("ronde"))
}

/// Returns the variables that override values of the run file as arguments of `--set`, for a process on another host.
#[must_use]
pub fn sets() -> Vec<String> {
    let set = |(name, value): (String, String)| {
        let key = name.strip_prefix(ENVIRONMENT_PREFIX)?;
        Some(format!(
            "{}={value}",
            key.to_ascii_lowercase().replace("__", ".")
        ))
    };
    all().into_iter().filter_map(set).collect()
}

/// Returns the settings for opening a data set. Relative paths start from `base`; `seed` is the run's seed.
#[must_use]
pub fn opening(base: &Path, seed: u64) -> OpenContext {
    surroundings().opening(base, seed, Arc::new(|_| {}))
}

/// Returns the role of this process, of [`RONDE_ROLE`]; `None` if it has none.
#[must_use]
pub fn role() -> Option<String> {
    let role = read(RONDE_ROLE)?.into_string().ok()?;
    (!role.is_empty()).then_some(role)
}

/// Returns the variables that limit thread pools to one thread per rank, because each pool would use all cores
/// otherwise. Variables that the user has set are left out.
#[must_use]
pub fn thread_limits() -> Vec<(OsString, OsString)> {
    [RAYON_NUM_THREADS, OMP_NUM_THREADS]
        .into_iter()
        .filter(|name| read(name).is_none())
        .map(|name| (name.into(), "1".into()))
        .collect()
}

/// Returns the variable with the allocator settings of a training worker, unless the user has set it.
/// Memory from 1 MiB on is apart from the heap, where short memory between long one would divide it into ranges that nothing fits;
/// activations, which every step takes again, have separate slabs. The heap is kept instead of returned to the system, and huge pages
/// are used where available. Has no effect with other C libraries.
#[must_use]
pub fn allocator_settings() -> Vec<(OsString, OsString)> {
    const KEEP: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1048576:\
                        glibc.malloc.trim_threshold=4294967296";
    let is_free = read(GLIBC_TUNABLES).is_none();
    let set = is_free.then(|| (GLIBC_TUNABLES.into(), KEEP.into()));
    set.into_iter().collect()
}

/// Disables colour when it is set to any text; see <https://no-color.org>.
pub const NO_COLOR: &str = "NO_COLOR";
/// The kind of terminal; on `dumb` terminals lines cannot be redrawn.
pub const TERM: &str = "TERM";

/// Returns whether the user has disabled colour by [`NO_COLOR`].
#[must_use]
pub fn refuses_colour() -> bool {
    read(NO_COLOR).is_some_and(|value| !value.is_empty())
}

/// Returns whether the terminal cannot move its cursor: [`TERM`] is `dumb`.
#[must_use]
pub fn terminal_is_dumb() -> bool {
    read(TERM).is_some_and(|value| value == "dumb")
}

/// Returns the folder that [`RONDE_FLIGHT`] names.
#[must_use]
pub fn flight_folder() -> Option<PathBuf> {
    read(RONDE_FLIGHT).map(PathBuf::from)
}

/// Reads a variable of this process.
fn read(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The variables that belong to [`RONDE_CONTROL`], which is set.
struct WorkerVariables<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl WorkerVariables<'_> {
    fn parse<T: std::str::FromStr>(&self, name: &str, meaning: &str) -> Result<T, String> {
        let value = (self.variable)(name)
            .ok_or_else(|| format!("{RONDE_CONTROL} is set but {name}, {meaning}, is not"))?;
        value
            .to_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                // The secret is never printed here: parsing it as a string cannot fail.
                format!("{name}={} is not {meaning}", value.to_string_lossy())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 6] = [
        (RONDE_CONTROL, "127.0.0.1:4711"),
        (RONDE_TOKEN, "secret"),
        (RONDE_RANK, "1"),
        (RONDE_WORLD_SIZE, "2"),
        (RONDE_JOB, "digits"),
        (RONDE_WORKER, "7"),
    ];

    /// Reads valid variables with one of them changed or, with `None`, removed.
    fn with(name: &str, value: Option<&str>) -> Result<Option<WorkerEnvironment>, String> {
        WorkerEnvironment::of(&|requested| {
            if requested == name {
                return value.map(OsString::from);
            }
            let (_, value) = GOOD.iter().find(|(name, _)| *name == requested)?;
            Some(value.into())
        })
    }

    #[test]
    fn valid_variables_are_read_and_the_secret_is_not_printed() {
        let Some(WorkerEnvironment::Supervised(read)) = with("", None).unwrap() else {
            panic!("no supervisor");
        };
        assert_eq!(read.rank, Rank(1));
        assert_eq!(read.world_size.get(), 2);
        assert_eq!(read.token, "secret");
        assert_eq!(
            format!("{read:?}"),
            "rank 1 of 2 of job digits at 127.0.0.1:4711"
        );
        // The remaining variables are those of another launcher, without the address of rank 0.
        let problem = with(RONDE_CONTROL, None).unwrap_err();
        assert!(
            problem.contains("no variable names the host of rank 0"),
            "{problem}"
        );
    }

    #[test]
    fn the_secret_of_a_job_is_read_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let read = |token: Option<&str>| {
            let (file, token) = (file.clone(), token.map(OsString::from));
            WorkerEnvironment::of(&move |requested| match requested {
                RONDE_RENDEZVOUS => Some("node1:4711".into()),
                RONDE_RANK => Some("0".into()),
                RONDE_WORLD_SIZE => Some("2".into()),
                RONDE_TOKEN_FILE => Some(file.clone().into()),
                RONDE_TOKEN => token.clone(),
                _ => None,
            })
        };
        assert!(read(None).unwrap_err().contains("RONDE_TOKEN_FILE"));
        std::fs::write(&file, "the secret\n").unwrap();
        let Some(WorkerEnvironment::Fixed { rank, .. }) = read(None).unwrap() else {
            panic!("no rank");
        };
        assert_eq!(rank.token, "the secret");
        assert!(read(Some("x")).unwrap_err().contains("both set"));
    }

    #[test]
    fn a_rank_of_another_launcher_needs_no_supervisor() {
        let read = |names: &[(&'static str, &'static str)]| {
            let names = names.to_owned();
            WorkerEnvironment::of(&move |requested| {
                let (_, value) = names.iter().find(|(name, _)| *name == requested)?;
                Some(value.into())
            })
        };
        let mut variables = vec![
            (RONDE_RENDEZVOUS, "node1:4711"),
            (RONDE_RANK, "3"),
            (RONDE_WORLD_SIZE, "4"),
        ];
        let Ok(Some(WorkerEnvironment::Fixed { rank: fixed, .. })) = read(&variables) else {
            panic!("not read");
        };
        assert_eq!(
            format!("{fixed:?}"),
            "rank 3 of 4 of job job, rendezvous at node1:4711"
        );
        assert_eq!(fixed.token, "");
        variables.remove(1);
        let problem = read(&variables).unwrap_err();
        assert!(
            problem.contains("RONDE_WORLD_SIZE is set but RONDE_RANK, a rank, is not"),
            "{problem}"
        );
    }

    #[test]
    fn an_invalid_variable_is_named() {
        let cases = [
            (
                RONDE_CONTROL,
                Some("nowhere"),
                "RONDE_CONTROL=nowhere is not an address",
            ),
            (
                RONDE_TOKEN,
                None,
                "RONDE_TOKEN, the secret of the job, is not",
            ),
            (RONDE_RANK, Some("-1"), "RONDE_RANK=-1 is not a rank"),
            (
                RONDE_RANK,
                Some("2"),
                "RONDE_RANK=2 does not fit RONDE_WORLD_SIZE=2",
            ),
            (
                RONDE_WORLD_SIZE,
                Some("0"),
                "does not fit RONDE_WORLD_SIZE=0",
            ),
        ];
        for (name, value, expected) in cases {
            let problem = with(name, value).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
