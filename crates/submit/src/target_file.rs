//! [`TargetFile`]: the targets that a user has described, `targets.toml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::drain_sources;
use crate::error::SubmitError;
use crate::kubernetes::{KubernetesSettings, KubernetesTarget};
use crate::local::{LocalSettings, LocalTarget};
use crate::names;
use crate::ray::{RaySettings, RayTarget};
use crate::slurm::{SlurmSettings, SlurmTarget};
use crate::ssh::{SshSettings, SshTarget};
use crate::target::{Target, TargetContext};

/// The name of the target that always exists.
const LOCAL: &str = "local";
/// The version of the file's format, which a file may state as `version`.
const FORMAT: &str = "1";
/// The maximum size of the file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TargetSettings {
    /// This machine.
    Local(LocalSettings),
    /// Hosts over SSH.
    Ssh(SshSettings),
    /// A cluster of Slurm.
    Slurm(SlurmSettings),
    /// A namespace of a cluster of Kubernetes.
    Kubernetes(KubernetesSettings),
    /// A cluster of Ray.
    Ray(RaySettings),
}

impl TargetSettings {
    /// Returns whether answers about jobs need the network or a scheduler.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Local(_) => false,
            Self::Ssh(_) | Self::Slurm(_) | Self::Kubernetes(_) | Self::Ray(_) => true,
        }
    }

    /// Checks the rest after the description is read. The error is a message.
    ///
    /// # Errors
    /// A number is 0, a value for Slurm has a line break, or a source of notices is neither an absolute path nor an address.
    pub fn check(&self) -> Result<(), String> {
        if let Some(key) = self.zero() {
            return Err(format!(
                "`{key}` is 0, so that no worker could start; write 1 or more, or remove it"
            ));
        }
        if let Self::Slurm(settings) = self
            && let Some(key) = settings.broken_line()
        {
            return Err(format!(
                "`{key}` has a line break or another control character, which no option of sbatch can have; write it \
                 in one line"
            ));
        }
        match self {
            Self::Local(_) => Ok(()),
            Self::Slurm(settings) => drain_sources::check(&settings.drain_on),
            Self::Ssh(settings) => drain_sources::check(&settings.drain_on),
            Self::Kubernetes(settings) => drain_sources::check(&settings.drain_on),
            Self::Ray(settings) => drain_sources::check(&settings.drain_on),
        }
    }

    /// Returns the key of a number that is 0 and must not be.
    fn zero(&self) -> Option<&'static str> {
        let numbers = match self {
            Self::Local(settings) => [("slots", settings.slots), ("", None), ("", None)],
            Self::Ssh(_) => return None,
            Self::Slurm(settings) => [
                ("nodes", settings.nodes),
                ("slots", settings.slots),
                ("cpus_per_worker", settings.cpus_per_worker),
            ],
            Self::Kubernetes(settings) => [("slots", settings.slots), ("", None), ("", None)],
            Self::Ray(settings) => [
                ("nodes", settings.nodes),
                ("slots", settings.slots),
                ("cpus_per_worker", settings.cpus_per_worker),
            ],
        };
        let zero = numbers.into_iter().find(|(_, value)| *value == Some(0));
        zero.map(|(key, _)| key)
    }

    /// Returns the target.
    #[must_use]
    pub fn target(&self, context: &TargetContext) -> Box<dyn Target> {
        let jobs = context.jobs.as_path();
        match self {
            Self::Local(settings) => Box::new(LocalTarget::new(settings.clone(), jobs)),
            Self::Slurm(settings) => Box::new(SlurmTarget::new(settings.clone(), jobs)),
            Self::Ssh(settings) => {
                let state = jobs.parent().unwrap_or(jobs);
                Box::new(SshTarget::new(settings.clone(), state))
            }
            Self::Kubernetes(settings) => {
                let access = context.kubernetes.clone();
                Box::new(KubernetesTarget::new(settings.clone(), access))
            }
            Self::Ray(settings) => Box::new(RayTarget::new(settings.clone(), context.ray.clone())),
        }
    }
}

/// The targets of a user by name. A target that is not valid does not affect the others.
#[derive(Debug, Clone, Default)]
pub struct TargetFile {
    path: PathBuf,
    /// Each target, or the problem of its description.
    targets: BTreeMap<String, Result<TargetSettings, String>>,
}

impl TargetFile {
    /// Reads the file. Without `is_required`, a missing file describes no targets.
    ///
    /// # Errors
    /// The file cannot be read or is not valid TOML.
    pub fn read(path: &Path, is_required: bool) -> Result<Self, SubmitError> {
        let text = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_required => {
                return Ok(Self::default());
            }
            Ok(found) if !found.is_file() || found.len() > FILE_BYTES_MAX => {
                let problem = format!("expected a file of at most {FILE_BYTES_MAX} bytes");
                return Err(SubmitError::damaged(path, problem));
            }
            _ => std::fs::read(path).map_err(SubmitError::file("read", path))?,
        };
        let text = String::from_utf8(text).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
            unreadable(path, &format!("line {line} is not text in UTF-8"))
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        let home = std::env::home_dir();
        let targets = Self::parse(&text, base, home.as_deref());
        Ok(Self {
            path: path.to_owned(),
            ..targets.map_err(|problem| unreadable(path, &problem))?
        })
    }

    fn parse(text: &str, base: &Path, home: Option<&Path>) -> Result<Self, String> {
        let described = DeTable::parse(text).map_err(|error| error.to_string())?;
        let mut targets = BTreeMap::new();
        for (name, table) in described.into_inner() {
            let name = name.into_inner().into_owned();
            if name == "version" && !table.get_ref().is_table() {
                check_format(table.get_ref())?;
                continue;
            }
            let parsed = parse_target(table).map_err(|mut error| {
                error.set_input(Some(text));
                plain(error.to_string().trim_end().to_owned())
            });
            let settings = names::check("target", &name)
                .map_err(|error| error.to_string())
                .and(parsed)
                .and_then(|settings| {
                    let resolved = resolve(settings, base, home);
                    resolved.map_err(|problem| format!("[{name}]: {problem}"))
                });
            targets.insert(name, settings);
        }
        Ok(Self {
            path: PathBuf::new(),
            targets,
        })
    }

    /// Finds a target. `local` exists without a description.
    ///
    /// # Errors
    /// The description of the target is not valid, or the target is unknown; then the message names those that exist.
    pub fn find(&self, name: &str) -> Result<TargetSettings, SubmitError> {
        match self.targets.get(name) {
            Some(Ok(found)) => Ok(found.clone()),
            Some(Err(problem)) => Err(unreadable(&self.path, problem)),
            None if name == LOCAL => Ok(TargetSettings::Local(LocalSettings::default())),
            None => {
                let mut names: Vec<&str> = self.targets.keys().map(String::as_str).collect();
                if !names.contains(&LOCAL) {
                    names.push(LOCAL);
                }
                Err(SubmitError::invalid(
                    format!("there is no target `{}`", name.escape_debug()),
                    format!(
                        "targets: {}; describe others in `~/.config/ronde/targets.toml`, or name the file with `--targets`",
                        names.join(", ")
                    ),
                ))
            }
        }
    }
}

/// Returns the error of a file, or of one target in it.
fn unreadable(file: &Path, problem: &str) -> SubmitError {
    SubmitError::invalid(
        format!("cannot read {}: {}", file.display(), problem.trim_end()),
        "correct the file; docs/jobs.md lists the keys of each kind of target",
    )
}

/// Refuses a format of the file that this program does not know. The error is a sentence.
fn check_format(version: &DeValue<'_>) -> Result<(), String> {
    match version.as_integer() {
        Some(number) if number.as_str() == FORMAT => Ok(()),
        _ => Err(format!(
            "its `version` is not {FORMAT}, the only one that this ronde reads; a newer ronde may have written it"
        )),
    }
}

/// The kind of a target, without which its keys are not known.
#[derive(Deserialize)]
#[serde(expecting = "a table with the keys of a target")]
struct DescribedTarget {
    kind: TargetTag,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum TargetTag {
    Local,
    Ssh,
    Slurm,
    Kubernetes,
    Ray,
}

/// Reads the table of a target. An error has the position of its key.
fn parse_target(mut table: Spanned<DeValue<'_>>) -> Result<TargetSettings, toml::de::Error> {
    let described = DescribedTarget::deserialize(ValueDeserializer::from(table.clone()))?;
    if let DeValue::Table(keys) = table.as_mut() {
        keys.remove("kind");
    }
    fn settings<T: DeserializeOwned>(table: Spanned<DeValue<'_>>) -> Result<T, toml::de::Error> {
        T::deserialize(ValueDeserializer::from(table))
    }
    Ok(match described.kind {
        TargetTag::Local => TargetSettings::Local(settings(table)?),
        TargetTag::Ssh => TargetSettings::Ssh(settings(table)?),
        TargetTag::Slurm => TargetSettings::Slurm(settings(table)?),
        TargetTag::Kubernetes => TargetSettings::Kubernetes(settings(table)?),
        TargetTag::Ray => TargetSettings::Ray(settings(table)?),
    })
}

/// Returns a message about a key without the names of types of Rust.
fn plain(message: String) -> String {
    let words = [
        (
            "wanted string or table",
            "expected the name of a kind in quotes",
        ),
        ("expected u16", "expected a whole number from 0 to 65535"),
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected path string", "expected a path"),
        ("expected a sequence", "expected a list"),
    ];
    words.iter().fold(message, |message, (of_rust, plain)| {
        match message.strip_suffix(of_rust) {
            Some(before) => format!("{before}{plain}"),
            None => message,
        }
    })
}

/// Checks a target and completes the paths in it, which begin at `base`, or at `home` after `~/`. The error is a message.
fn resolve(
    mut settings: TargetSettings,
    base: &Path,
    home: Option<&Path>,
) -> Result<TargetSettings, String> {
    let inside = |path: Option<PathBuf>| {
        let path = path.map(|path| in_home(path, home)).transpose()?;
        Ok::<_, String>(path.map(|path| base.join(path)))
    };
    match &mut settings {
        TargetSettings::Ssh(settings) => {
            // The path of `folder` is one of the hosts.
            if let Some(file) = settings.hostfile.take() {
                settings.hostfile = Some(in_home(file, home)?);
            }
            let resolved = std::mem::take(settings).resolve(base);
            *settings = resolved.map_err(|error| error.to_string())?;
        }
        TargetSettings::Kubernetes(settings) => {
            settings.kubeconfig = inside(settings.kubeconfig.take())?;
        }
        TargetSettings::Ray(settings) => {
            for file in [&mut settings.token_file, &mut settings.authority] {
                *file = inside(file.take())?;
            }
        }
        TargetSettings::Local(settings) => {
            settings.folder = absolute(inside(settings.folder.take())?)?;
        }
        TargetSettings::Slurm(settings) => {
            settings.folder = absolute(inside(settings.folder.take())?)?;
        }
    }
    settings.check()?;
    Ok(settings)
}

/// Replaces `~` at the beginning of a path by the user's home. The error is a message.
fn in_home(path: PathBuf, home: Option<&Path>) -> Result<PathBuf, String> {
    let Ok(below) = path.strip_prefix("~") else {
        return Ok(path);
    };
    match home.filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(below)),
        None => Err(format!(
            "cannot find `{}`: there is no home folder; set HOME to an absolute path, or write the path without `~`",
            path.display()
        )),
    }
}

/// Returns the absolute path of a folder. The error is a message.
fn absolute(folder: Option<PathBuf>) -> Result<Option<PathBuf>, String> {
    let folder = folder.map(std::path::absolute).transpose();
    folder.map_err(|error| format!("cannot find the current folder: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_by_name_and_mistakes_are_named() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("hosts"), "gpu1 slots=4\n").unwrap();
        let parse = |text: &str| TargetFile::parse(text, base.path(), None);
        let text = "[big]\nkind = \"local\"\nslots = 8\n[gpus]\nkind = \"ssh\"\nhostfile = \"hosts\"\nhosts = [\"gpu2:2\"]\n";
        let file = parse(text).unwrap();
        let Ok(TargetSettings::Ssh(gpus)) = file.find("gpus") else {
            panic!("no target of hosts");
        };
        let slots: Vec<u32> = gpus.hosts.iter().map(|host| host.slots).collect();
        assert_eq!(slots, [2, 4]);
        assert!(
            matches!(file.find("big"), Ok(TargetSettings::Local(found)) if found.slots == Some(8))
        );
        assert!(file.find("local").is_ok());
        let unknown = file.find("other").unwrap_err().to_string();
        assert!(unknown.contains("targets: big, gpus, local"), "{unknown}");
        for (text, problem) in [
            ("[x]\nkind = \"cloud\"", "unknown variant `cloud`"),
            ("[x]\nkind = \"ssh\"", "[x]: the list of hosts is empty"),
            (
                "[x]\nkind = \"ssh\"\nhosts = [\"a:0\"]",
                "invalid host `a:0`",
            ),
            ("[x]\n", "missing field `kind`"),
            (
                "[x]\nkind = \"local\"\nsloots = 1",
                "line 5, column 1\n  |\n5 | sloots = 1\n  | ^^^^^^\nunknown field `sloots`",
            ),
            ("[x]\nkind = \"local\"\nslots = 0", "[x]: `slots` is 0"),
            (
                "[x]\nkind = \"ssh\"\nhosts = [\"a\"]\ndrain_on = [\"notice\"]",
                "[x]: invalid `drain_on` `notice`",
            ),
            (
                "[x]\nkind = \"slurm\"\nfolder = \"~/jobs\"",
                "[x]: cannot find `~/jobs`: there is no home folder",
            ),
            (
                "[\"a b\"]\nkind = \"local\"",
                "invalid name of a target `a b`",
            ),
        ] {
            let name = if text.starts_with("[x]") { "x" } else { "a b" };
            let others = format!("[other]\nkind = \"local\"\n{text}");
            let file = parse(&others).unwrap();
            assert!(file.find("other").is_ok(), "{problem}");
            let error = file.find(name).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn values_that_no_target_can_use_are_refused_with_their_key() {
        for (text, problem) in [
            ("[x]\nkind = \"slurm\"\nslots = 0", "[x]: `slots` is 0"),
            ("[x]\nkind = \"slurm\"\nnodes = 0", "[x]: `nodes` is 0"),
            (
                "[x]\nkind = \"slurm\"\ncpus_per_worker = 0",
                "[x]: `cpus_per_worker` is 0",
            ),
            (
                "[x]\nkind = \"kubernetes\"\nimage = \"i\"\nslots = 0",
                "[x]: `slots` is 0",
            ),
            (
                "[x]\nkind = \"ray\"\naddress = \"http://h\"\nnodes = 0",
                "[x]: `nodes` is 0",
            ),
            (
                "[x]\nkind = \"slurm\"\npartition = \"gpu\\n#SBATCH -w x\"",
                "[x]: `partition` has a line break",
            ),
            (
                "[x]\nkind = \"slurm\"\ntime = \"1:00\\r\"",
                "[x]: `time` has a line break",
            ),
            ("[x]\nkind = 5", "expected the name of a kind in quotes"),
            (
                "[x]\nkind = \"ssh\"\nhosts = \"a\"",
                "invalid type: string \"a\", expected a list",
            ),
            (
                "[x]\nkind = \"local\"\nslots = -1",
                "integer `-1`, expected a whole number from 0 to 4294967295",
            ),
            (
                "[x]\nkind = \"local\"\nfolder = 5",
                "integer `5`, expected a path",
            ),
        ] {
            let file = TargetFile::parse(text, Path::new("/"), None).unwrap();
            let error = file.find("x").unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_text_and_a_key_that_is_no_target_are_mistakes_of_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("targets.toml");
        std::fs::write(&path, b"[a]\nkind = \"local\"\n# \xff\n").unwrap();
        let error = TargetFile::read(&path, true).unwrap_err();
        assert!(matches!(error, SubmitError::Invalid { .. }));
        let expected = format!(
            "cannot read {}: line 3 is not text in UTF-8\n  help: correct the file",
            path.display()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        std::fs::write(&path, "slots = 4\n").unwrap();
        let file = TargetFile::read(&path, true).unwrap();
        let error = file.find("slots").unwrap_err().to_string();
        assert!(
            error.contains("expected a table with the keys of a target"),
            "{error}"
        );
    }

    #[test]
    fn a_file_of_another_format_is_refused() {
        let parse = |text: &str| TargetFile::parse(text, Path::new("/"), None);
        let target = "[version]\nkind = \"local\"\n";
        assert!(parse("version = 1\n[a]\nkind = \"local\"\n").is_ok());
        assert!(parse(target).unwrap().find("version").is_ok());
        for version in ["2", "\"1\"", "1.0"] {
            let error = parse(&format!("version = {version}\n[a]\nkind = \"local\"\n"));
            let error = error.unwrap_err();
            assert!(error.contains("its `version` is not 1"), "{error}");
        }
    }

    #[test]
    fn paths_begin_at_the_home_of_the_user_after_a_tilde() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("home")).unwrap();
        std::fs::write(base.path().join("home/hosts"), "gpu1 slots=4\n").unwrap();
        let text = "[l]\nkind = \"local\"\nfolder = \"~/jobs\"\n[s]\nkind = \"slurm\"\nfolder = \"jobs\"\n\
            [h]\nkind = \"ssh\"\nhostfile = \"~/hosts\"\nfolder = \"~/x\"\n\
            [k]\nkind = \"kubernetes\"\nimage = \"i\"\nkubeconfig = \"~/k\"\n\
            [r]\nkind = \"ray\"\naddress = \"http://head:8265\"\ntoken_file = \"~/t\"\n";
        let home = base.path().join("home");
        let file = TargetFile::parse(text, base.path(), Some(&home)).unwrap();
        for name in ["l", "s", "h", "k", "r"] {
            match file.find(name).unwrap() {
                TargetSettings::Local(found) => assert_eq!(found.folder, Some(home.join("jobs"))),
                TargetSettings::Slurm(found) => {
                    assert_eq!(found.folder, Some(base.path().join("jobs")));
                }
                TargetSettings::Ssh(found) => {
                    assert_eq!(found.hosts.len(), 1);
                    assert_eq!(found.folder.as_deref(), Some("~/x"));
                }
                TargetSettings::Kubernetes(found) => {
                    assert_eq!(found.kubeconfig, Some(home.join("k")));
                }
                TargetSettings::Ray(found) => assert_eq!(found.token_file, Some(home.join("t"))),
            }
        }
    }
}
