//! Tests of the state of a process from its folder.

use super::*;

fn folder() -> (tempfile::TempDir, ProcessFolder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = ProcessFolder::new(dir.path().join("launcher"));
    let command = ProcessCommand {
        arguments: vec!["train".to_owned()],
        directory: dir.path().to_owned(),
    };
    folder.prepare(&command).unwrap();
    assert_eq!(folder.command().unwrap(), command);
    (dir, folder)
}

#[test]
fn a_process_runs_while_it_holds_the_lock_and_leaves_its_exit_code() {
    let (_dir, folder) = folder();
    assert_eq!(folder.state().unwrap(), ProcessState::NotStarted);
    let guard = folder.enter().unwrap();
    let pid = std::process::id();
    assert_eq!(
        folder.state().unwrap(),
        ProcessState::Running { pid, problem: None }
    );
    let second = folder.enter().unwrap_err().to_string();
    assert!(second.contains("another process has locked"), "{second}");
    let again = folder.prepare(&folder.command().unwrap()).unwrap_err();
    assert!(again.to_string().contains("still runs"), "{again}");
    // Each character of the longest reason takes six bytes.
    let reason = "\u{1}".repeat(REASON_MAX);
    guard.finish(3, Some(format!("{reason}x"))).unwrap();
    let state = folder.state().unwrap();
    assert!(
        matches!(&state, ProcessState::Exited { code: 3, reason: Some(kept), .. } if *kept == reason),
        "{state:?}"
    );
    let written = std::fs::metadata(folder.path.join(EXIT_FILE))
        .unwrap()
        .len();
    assert_eq!(written, EXIT_BYTES as u64, "no further block is needed");
}

#[test]
fn a_killed_process_and_one_of_an_earlier_boot_are_lost() {
    let (_dir, folder) = folder();
    // As after SIGKILL: the lock is released, and without an exit code.
    drop(folder.enter().unwrap());
    assert_eq!(folder.state().unwrap(), ProcessState::Lost);
    let path = folder.path.join(PROCESS_FILE);
    let mut process: ProcessIdentity = read_json(&path).unwrap().unwrap();
    process.boot = "earlier".to_owned();
    copying::publish_json(&path, &process).unwrap();
    assert_eq!(folder.state().unwrap(), ProcessState::Lost);
    assert!(
        folder.stop(Duration::from_secs(1)).unwrap(),
        "this test is not ended"
    );
}

#[test]
fn damaged_files_are_errors_and_a_missing_folder_is_not() {
    let (dir, folder) = folder();
    std::fs::write(folder.path.join(EXIT_FILE), "{").unwrap();
    let error = folder.state().unwrap_err().to_string();
    assert!(error.contains("exit.json"), "{error}");
    let gone = ProcessFolder::new(dir.path().join("gone"));
    assert_eq!(gone.state().unwrap(), ProcessState::NotStarted);
    assert!(gone.stop(Duration::ZERO).unwrap());
}

#[test]
fn a_process_that_does_not_start_in_time_is_killed() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, folder) = folder();
    let program = dir.path().join("slow");
    std::fs::write(&program, "#!/bin/sh\necho $$\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let error = folder
        .start_within(&program, Duration::from_secs(1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("did not start within 1s"), "{error}");
    let pid = std::fs::read_to_string(folder.output()).unwrap();
    let process = Path::new("/proc").join(pid.trim());
    assert!(!pid.trim().is_empty() && !process.exists(), "{pid}");
}
