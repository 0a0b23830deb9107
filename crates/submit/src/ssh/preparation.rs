//! [`PreparedHost`]: a host that has been checked and has the program and the data of a job.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::connection::{Input, MARK, SshConnection, tar};
use super::facts::HostFacts;
use super::unused::NOTE_USE;
use super::{ANSWER_MAX, HostSlots};
use crate::error::SubmitError;
use crate::input_folder::InputFolder;
use crate::shell_words;

/// Time limit for a copy to a host.
pub(super) const COPY_MAX: Duration = Duration::from_secs(4 * 3600);
/// Creates the folder of ronde, notes what the job uses, and reports what is there. Arguments: the folder, the name of the program,
/// that of the data, the mark of the job. The first line is [`MARK`].
///
/// `cat` writes the bytes that can fail on a full disk, because some shells report that as `I/O error`.
const PROBE: [&str; 3] = [
    r#"
echo ronde-begins
umask 077
case "$1" in "~/"*) folder=$HOME/${1#"~/"};; *) folder=$1;; esac
mkdir -p -- "$folder/bin" "$folder/inputs" "$folder/jobs" && cd -- "$folder" || exit 71
echo test | cat > ".test.$$" || { rm -f ".test.$$"; exit 72; }
rm -f ".test.$$"
echo "folder $(pwd -P)"
echo "address $SSH_CONNECTION"
program=$2 inputs=$3 mark=$4
"#,
    NOTE_USE,
    r#"
test -x "bin/$2/ronde" && echo has-program
test -d "inputs/$3" && echo has-inputs
exit 0
"#,
];
/// Stores the program. Arguments: its folder, its size and its name. Several submissions, also of hosts that share the folder, may do so
/// at the same time.
pub(super) const STORE_PROGRAM: &str = r#"
umask 077
mkdir -p -- "$1" && cd -- "$1" || exit 71
new=.unfinished-$(uname -n)-$$
if cat > "$new" && test "$(wc -c < "$new")" -eq "$2" && chmod 700 "$new" && mv -f "$new" "$3"; then exit 0; fi
rm -f "$new"
echo "the program did not arrive completely" >&2
exit 73
"#;
/// Stores the data. Arguments: the folder of all data, the name of this one, its number of files. An archive that ends between
/// two files is valid, so the files are counted.
///
/// Several hosts may store the same data in a folder that they share. `mv` moves a folder *into* one of the new name that
/// another host has just made; it fails if the folder is moved to its new parent under the name that it has.
pub(super) const STORE_INPUTS: &str = r#"
umask 077
mkdir -p -- "$1" && cd -- "$1" || exit 71
new=.$2-$(uname -n)-$$
rm -rf "$new" && mkdir -p -- "$new/$2" || exit 71
if tar -x -f - -C "$new/$2" && test "$(find "$new" -type f -exec printf 'x%.0s' {} + | wc -c)" -eq "$3"; then
  mv "$new/$2" . 2>/dev/null
  rm -rf "$new"
  test -d "$2" && exit 0
fi
rm -rf "$new"
echo "the files did not arrive completely" >&2
exit 73
"#;

/// Gives data that was stored under another name its own, unless there is the same data already. Arguments: the folder of all
/// data, the name with which it was stored, its own name.
const NAME_INPUTS: &str = r#"
cd -- "$1" || exit 71
new=$2-named
mkdir -- "$new" && mv -- "$2" "$new/$3" && mv -- "$new/$3" . 2>/dev/null
rm -rf -- "$new"
test -d "$3"
"#;

/// The program of this machine. It stays open, so that a build which replaces the file meanwhile does not change it.
pub(super) struct CopiedProgram {
    /// The path of the open file.
    path: PathBuf,
    hash: String,
    bytes: u64,
    _file: File,
}

impl CopiedProgram {
    pub(super) fn open(path: &Path) -> Result<Self, SubmitError> {
        let mut hasher = blake3::Hasher::new();
        let read = File::open(path).and_then(|file| {
            let bytes = hasher.update_reader(&file)?.count();
            Ok((file, bytes))
        });
        let (file, bytes) = read.map_err(SubmitError::file("read", path))?;
        Ok(Self {
            path: PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            hash: hasher.finalize().to_hex().to_string(),
            bytes,
            _file: file,
        })
    }
}

/// The program and the data for the hosts of a job.
pub(super) struct HostNeeds<'a> {
    /// The folder of ronde on the hosts.
    pub(super) folder: &'a str,
    /// The program of this machine; `None` if the hosts have a program.
    pub(super) program: Option<CopiedProgram>,
    /// The path of the program on the hosts, if they have one.
    pub(super) installed: Option<&'a str>,
    pub(super) inputs: Option<InputFolder>,
    /// The mark that distinguishes the job from others on the hosts.
    pub(super) mark: String,
}

impl HostNeeds<'_> {
    /// Copies the program and the data, unless the host has them.
    fn copy(
        &self,
        connection: &SshConnection,
        folder: &Path,
        (has_program, has_inputs): (bool, bool),
    ) -> Result<(), SubmitError> {
        if let Some(program) = self.program.as_ref().filter(|_| !has_program) {
            let to = folder.join("bin").join(&program.hash).display().to_string();
            let store = script(STORE_PROGRAM, &[&to, &program.bytes.to_string(), "ronde"]);
            connection.call(&store, Input::File(&program.path), COPY_MAX)?;
        }
        if let Some(inputs) = self.inputs.as_ref().filter(|_| !has_inputs) {
            let to = folder.join("inputs").display().to_string();
            let count = inputs.files.len().to_string();
            // Its name is a promise about its contents, and a file may have changed since its hash was computed.
            let unchecked = format!(".unchecked-{}-{}", inputs.hash, connection.mark());
            let store = script(STORE_INPUTS, &[&to, &unchecked, &count]);
            let sent = Input::Output(tar(&inputs.base, &inputs.files)?);
            connection.call(&store, sent, COPY_MAX)?;
            if let Err(changed) = inputs.check_unchanged() {
                let remove = shell_words::join(["rm", "-rf", "--", &format!("{to}/{unchecked}")]);
                connection.call(&remove, Input::Nothing, ANSWER_MAX)?;
                return Err(changed);
            }
            let name = script(NAME_INPUTS, &[&to, &unchecked, &inputs.hash]);
            connection.call(&name, Input::Nothing, ANSWER_MAX)?;
        }
        Ok(())
    }
}

/// A host that can run its part of a job.
pub(super) struct PreparedHost {
    pub(super) host: HostSlots,
    pub(super) connection: SshConnection,
    /// The absolute path of the folder of ronde.
    pub(super) folder: PathBuf,
    /// The path of `ronde`.
    pub(super) program: String,
    /// The address to which `ssh` has connected.
    pub(super) address: Option<String>,
    pub(super) facts: HostFacts,
}

/// Returns a call of a script with arguments for a shell.
pub(super) fn script(text: &str, arguments: &[&str]) -> String {
    let words = ["sh", "-c", text, "ronde"];
    shell_words::join(words.into_iter().chain(arguments.iter().copied()))
}

impl PreparedHost {
    /// Checks a host, and copies missing files.
    pub(super) fn prepare(
        needs: &HostNeeds<'_>,
        host: &HostSlots,
        connection: SshConnection,
    ) -> Result<Self, SubmitError> {
        let hash = needs
            .program
            .as_ref()
            .map_or("none", |program| &program.hash);
        let inputs = needs.inputs.as_ref().map_or("none", |inputs| &inputs.hash);
        let probe = script(&PROBE.concat(), &[needs.folder, hash, inputs, &needs.mark]);
        let answer = connection.call(&probe, Input::Nothing, ANSWER_MAX)?;
        let Some((_, answer)) = answer.split_once(MARK) else {
            let shown: String = answer.trim().chars().take(200).collect();
            return Err(connection.failed(format!(
                "its login shell does not run commands; it printed `{}`",
                shown.escape_debug()
            )));
        };
        let line = |label: &str| answer.lines().find_map(|line| line.strip_prefix(label));
        let Some(folder) = line("folder ").map(PathBuf::from) else {
            return Err(connection.failed("it does not report its folder".to_owned()));
        };
        let address = line("address ").and_then(|text| text.split(' ').nth(2));
        let address = address.map(str::to_owned);
        let (has_program, has_inputs) =
            (line("has-program").is_some(), line("has-inputs").is_some());
        needs.copy(&connection, &folder, (has_program, has_inputs))?;
        let copied = || {
            folder
                .join("bin")
                .join(hash)
                .join("ronde")
                .display()
                .to_string()
        };
        let program = needs.installed.map_or_else(copied, str::to_owned);
        let facts = shell_words::join([program.as_str(), "__job", "facts"]);
        let facts = connection.call(&facts, Input::Nothing, ANSWER_MAX);
        let facts = facts.map_err(|error| cannot_run(&connection, &program, error))?;
        let facts = connection.parse(&facts)?;
        Ok(Self {
            host: host.clone(),
            connection,
            folder,
            program,
            address,
            facts,
        })
    }

    /// Returns the path of a file of the data on the host.
    pub(super) fn input(&self, inputs: &InputFolder, file: &Path) -> PathBuf {
        self.folder.join("inputs").join(&inputs.hash).join(file)
    }
}

/// Returns the error of a host that did not run the program. A lost connection does not concern the program.
fn cannot_run(connection: &SshConnection, program: &str, error: SubmitError) -> SubmitError {
    match error {
        SubmitError::Host {
            problem,
            is_temporary: false,
            ..
        } => connection.failed(format!(
            "it cannot run {program}: {problem}\n  \
             help: for hosts with another system, install ronde there and set `program` of the target"
        )),
        error => error,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs a script as a host does, and returns its exit code and its output.
    pub(in crate::ssh) fn run_script(
        text: &str,
        arguments: &[&str],
        input: &[u8],
    ) -> (i32, String) {
        let mut shell = Command::new("sh")
            .arg("-c")
            .arg(script(text, arguments))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A script that reads no input may have ended.
        let _ = shell.stdin.take().unwrap().write_all(input);
        let ended = shell.wait_with_output().unwrap();
        let text = String::from_utf8(ended.stdout).unwrap();
        (ended.status.code().unwrap(), text.trim().to_owned())
    }

    #[test]
    fn a_lost_connection_is_not_taken_for_a_program_that_does_not_run() {
        let connection = SshConnection::new("h", &[], Path::new(""));
        let error = |is_temporary| SubmitError::Host {
            host: "h".to_owned(),
            problem: "a problem".to_owned(),
            help: None,
            is_temporary,
        };
        let lost = cannot_run(&connection, "/x/ronde", error(true));
        assert_eq!(lost.to_string(), "cannot use host `h`: a problem");
        assert_eq!(lost.recovery(), ronde_core::Recovery::Retry);
        let refused = cannot_run(&connection, "/x/ronde", error(false)).to_string();
        assert!(
            refused.contains("it cannot run /x/ronde: a problem"),
            "{refused}"
        );
    }

    #[test]
    fn hosts_that_share_a_folder_store_the_same_data_once() {
        let disk = tempfile::tempdir().unwrap();
        let inputs = disk.path().join("inputs").display().to_string();
        for round in 0..20 {
            let named = format!("hash-{round}");
            let hosts = ["a", "b", "c", "d"];
            for host in hosts {
                let unchecked = disk.path().join("inputs").join(host);
                std::fs::create_dir_all(&unchecked).unwrap();
                std::fs::write(unchecked.join("run.toml"), [7; 700]).unwrap();
            }
            std::thread::scope(|scope| {
                for host in hosts {
                    let arguments = [&inputs, host, &named];
                    scope.spawn(move || assert_eq!(run_script(NAME_INPUTS, &arguments, b"").0, 0));
                }
            });
            let stored = std::fs::read_dir(disk.path().join("inputs").join(named)).unwrap();
            let stored: Vec<_> = stored.map(|file| file.unwrap().file_name()).collect();
            assert_eq!(stored, ["run.toml"]);
        }
        let names = std::fs::read_dir(disk.path().join("inputs")).unwrap();
        assert_eq!(names.count(), 20, "nothing unfinished is left");
    }

    #[test]
    fn a_copy_that_was_cut_off_is_not_stored() {
        let disk = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(disk.path().join(name), [7; 700]).unwrap();
        }
        let archive = Command::new("tar")
            .args(["-c", "-f", "-", "-C"])
            .arg(disk.path())
            .args(["a", "b", "c"])
            .output()
            .unwrap()
            .stdout;
        let inputs = disk.path().join("inputs").display().to_string();
        let store = |bytes: &[u8]| run_script(STORE_INPUTS, &[&inputs, "hash", "3"], bytes).0;
        let stored = disk.path().join("inputs/hash");
        // A header and two blocks for each file: this one ends after the second file.
        for cut in [&archive[..3 * 512], &archive[..6 * 512], &[]] {
            assert_eq!(store(cut), 73, "{} bytes", cut.len());
            assert!(!stored.exists());
        }
        assert_eq!((store(&archive), store(&archive)), (0, 0));
        for unchecked in [".unchecked-1", ".unchecked-2"] {
            let stored = run_script(STORE_INPUTS, &[&inputs, unchecked, "3"], &archive).0;
            let named = run_script(NAME_INPUTS, &[&inputs, unchecked, "hash"], b"").0;
            assert_eq!((stored, named), (0, 0));
        }
        let names = std::fs::read_dir(disk.path().join("inputs")).unwrap();
        assert_eq!(names.count(), 1, "nothing unfinished is left");
        assert_eq!(std::fs::read_dir(&stored).unwrap().count(), 3);
        assert_eq!(std::fs::read(stored.join("c")).unwrap(), [7; 700]);

        let bin = disk.path().join("bin").display().to_string();
        let store = |bytes: &[u8]| run_script(STORE_PROGRAM, &[&bin, "4", "ronde"], bytes).0;
        assert_eq!(store(b"abc"), 73);
        assert_eq!(
            std::fs::read_dir(disk.path().join("bin")).unwrap().count(),
            0
        );
        assert_eq!(store(b"abcd"), 0);
        assert!(disk.path().join("bin/ronde").exists());
    }
}
