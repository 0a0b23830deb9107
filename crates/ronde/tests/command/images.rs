//! Images: a Containerfile for each set of dependencies, and an archive that other tools read and whose program runs without
//! root. The parts with tools are skipped with a message where these are not installed.

use std::path::Path;
use std::process::Command;

use crate::support::TestFolder;

/// Runs a program of the system and returns its output.
fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let problems = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {problems}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn runs_with_the_same_dependencies_share_a_containerfile() {
    let dir = TestFolder::new();
    let of = |sets: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        dir.run(&[&["image"], &sets[..]].concat())
            .expect(0, &[])
            .stdout
    };
    let plain = of(&[]);
    assert_eq!(plain, of(&["train.epochs=9"]));
    let full = of(&["checkpoint.to=s3://bucket/run"]);
    assert_ne!(plain, full);
    for (text, word) in [(&plain, "USER 65532:65532"), (&full, "--features full")] {
        assert!(text.contains(word), "{text}");
    }
    dir.run(&["image", "--to", "Containerfile"])
        .expect(0, &["podman build -t ronde:"]);
    assert_eq!(
        std::fs::read_to_string(dir.path().join("Containerfile")).unwrap(),
        plain
    );
    dir.run(&["image", "--oci", "x.tar", "--set", "train.engine=onednn"])
        .expect(2, &["oneDNN"]);
    dir.run(&["image", "gone.toml"]).expect(2, &["gone.toml"]);
}

#[test]
fn other_tools_read_the_archive_and_its_program_trains_without_root() {
    let dir = TestFolder::new();
    let written = dir
        .run(&["image", "--oci", "image.tar"])
        .expect(0, &["wrote ronde:"]);
    let digest = written.stdout.trim();
    let again = dir.run(&["image", "--oci", "again.tar"]).expect(0, &[]);
    assert_eq!(again.stdout.trim(), digest, "equal files give equal bytes");
    let path = |name: &str| dir.path().join(name).display().to_string();
    if ["/usr/bin/skopeo", "/usr/bin/umoci"]
        .iter()
        .any(|tool| !Path::new(tool).exists())
    {
        return ronde_testing::skip("skopeo and umoci are not installed");
    }
    let archive = format!("oci-archive:{}", path("image.tar"));
    let inspected = tool("skopeo", &["inspect", &archive]);
    let config = tool("skopeo", &["inspect", "--config", &archive]);
    for (text, word) in [
        (&inspected, digest),
        (&config, "65532:65532"),
        (&config, "/usr/local/bin/ronde"),
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let layout = format!("oci:{}:run", path("layout"));
    tool("skopeo", &["--insecure-policy", "copy", &archive, &layout]);
    tool(
        "umoci",
        &[
            "unpack",
            "--rootless",
            "--image",
            &format!("{}:run", path("layout")),
            &path("bundle"),
        ],
    );
    let root = dir.path().join("bundle/rootfs");
    for name in ["bin/sh", "usr/bin/sh", "bin/bash", "usr/bin/env"] {
        assert!(!root.join(name).exists(), "{name}");
    }
    if tool("id", &["-u"]).trim() != "0" {
        return ronde_testing::skip("only root can change the root folder");
    }
    // The folders above must be readable for the user of the image.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), mode).unwrap();
    let version = tool(
        "chroot",
        &[
            "--userspec=65532:65532",
            root.to_str().unwrap(),
            "/usr/local/bin/ronde",
            "--version",
        ],
    );
    assert!(version.starts_with("ronde "), "{version}");
    let checked = tool(
        "chroot",
        &[
            "--userspec=65532:65532",
            root.to_str().unwrap(),
            "/usr/local/bin/ronde",
            "train",
            "--dry-run",
        ],
    );
    assert!(checked.contains("nothing is trained"), "{checked}");
}

#[test]
fn container_engines_load_the_archive_by_name_and_run_it() {
    for program in ["/usr/bin/podman", "/usr/bin/buildah"] {
        if !Path::new(program).exists() {
            return ronde_testing::skip(&format!("there is no {program}"));
        }
    }
    if tool("id", &["-u"]).trim() != "0" {
        return ronde_testing::skip(
            "only root can use the storage of images without further settings",
        );
    }
    let dir = TestFolder::new();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let written = dir
        .run(&["image", "--oci", "image.tar"])
        .expect(0, &["wrote ronde:"]);
    let name = written.stderr.split_whitespace().nth(1).unwrap().to_owned();
    // In a separate storage. A container inside of a container cannot have all limits, but another root folder.
    let (images, state) = (path("images"), path("state"));
    let own = [
        "--storage-driver=vfs",
        "--root",
        &images,
        "--runroot",
        &state,
    ];
    let call = |program: &str, words: &[&str]| tool(program, &[&own[..], words].concat());
    let loaded = call("podman", &["load", "-i", &path("image.tar")]);
    assert!(loaded.contains(&format!("localhost/{name}")), "{loaded}");
    let container = call("buildah", &["from", "--pull-never", &name]);
    let container = container.trim();
    let run = ["run", "--isolation=chroot", container, "--"];
    let train = ["/usr/local/bin/ronde", "train", "--dry-run"];
    let checked = call("buildah", &[&run[..], &train].concat());
    assert!(checked.contains("nothing is trained"), "{checked}");
    call("buildah", &["rm", container]);
}

/// Makes a folder that looks like the source of `ronde`, with files that are not part of it.
fn source_with_other_files(dir: &TestFolder) {
    let ignored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dockerignore");
    let ignored = std::fs::read_to_string(ignored).unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join("source").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(".dockerignore", &ignored);
    for name in [
        "Cargo.toml",
        "crates/ronde/Cargo.toml",
        "crates/ronde/src/main.rs",
        "benchmarks/x.py",
        "benchmarks/x.md",
        "xtask/Cargo.toml",
        ".kube/config",
        "runs/digits/model.safetensors",
        "prod.env",
    ] {
        write(name, "");
    }
}

#[test]
fn an_image_is_built_from_the_source_alone() {
    if !Path::new("/usr/bin/podman").exists() {
        return ronde_testing::skip("there is no /usr/bin/podman");
    }
    if tool("id", &["-u"]).trim() != "0" {
        return ronde_testing::skip(
            "only root can use the storage of images without further settings",
        );
    }
    let dir = TestFolder::new();
    source_with_other_files(&dir);
    dir.write("Containerfile", "FROM scratch\nCOPY . /\n");
    let path = |name: &str| dir.path().join(name).display().to_string();
    tool(
        "podman",
        &[
            "--storage-driver=vfs",
            "--root",
            &path("images"),
            "--runroot",
            &path("state"),
            "build",
            "--isolation=chroot",
            "--output",
            &format!("type=local,dest={}", path("context")),
            "-f",
            &path("Containerfile"),
            &path("source"),
        ],
    );
    let found = |name: &str| dir.path().join("context").join(name).exists();
    for name in ["Cargo.toml", "crates/ronde/src/main.rs", "benchmarks/x.py"] {
        assert!(found(name), "{name}");
    }
    for name in [".kube", "runs", "prod.env", "benchmarks/x.md"] {
        assert!(!found(name), "{name}");
    }
}

#[test]
fn no_image_is_built_from_a_source_with_credentials() {
    let dir = TestFolder::new();
    source_with_other_files(&dir);
    dir.write("source/crates/prod.kubeconfig", "");
    dir.run(&["image", "--build", "source"]).expect(
        2,
        &["cannot send source/crates/prod.kubeconfig: it looks like"],
    );
}
