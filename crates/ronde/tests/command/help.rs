//! The help of every subcommand, compared with a stored text: changes of the command line are deliberate.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test --release -p ronde --test command help` writes the text again.

use std::path::Path;

use crate::support::TestFolder;

/// Appends the help of a command and of its subcommands.
fn collect(dir: &TestFolder, words: &[&str], all: &mut String) {
    let ended = dir.run(&[words, &["--help"]].concat()).expect(0, &[]);
    let name = [&["ronde"], words].concat().join(" ");
    all.push_str(&format!("$ {name} --help\n{}\n", ended.stdout));
    let Some((_, commands)) = ended.stdout.split_once("\nCommands:\n") else {
        return;
    };
    for line in commands.lines().take_while(|line| line.starts_with("  ")) {
        let first = line.split_whitespace().next();
        let is_name = !line.starts_with("   ");
        if let Some(subcommand) = first.filter(|name| is_name && *name != "help") {
            collect(dir, &[words, &[subcommand]].concat(), all);
        }
    }
}

#[test]
fn the_help_of_all_subcommands_is_as_stored() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    let mut all = String::new();
    collect(&TestFolder::new(), &[], &mut all);
    for line in all.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &all).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        all == stored,
        "the help has changed; if that is intended, run this test with UPDATE_SNAPSHOTS=1\n{all}"
    );
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let dir = TestFolder::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = dir.run(&["completions", shell]).expect(0, &[]).stdout;
        for words in ["train", "overwrite"] {
            assert!(script.contains(words), "{shell}: {words}");
        }
        assert!(!script.contains("bench_worker --"), "{shell}");
    }
    dir.run(&["completions", "tcsh"]).expect(2, &["tcsh"]);
    let page = dir.run(&["man"]).expect(0, &[]).stdout;
    assert!(page.contains(".TH ronde 1"), "{page}");
    dir.run(&["man", "pages"]).expect(0, &["pages"]);
    let pages = dir.list("pages");
    for name in [
        "ronde.1",
        "ronde-train.1",
        "ronde-bench-data.1",
        "ronde-checkpoint-ls.1",
    ] {
        assert!(pages.contains(&name.to_owned()), "{name} in {pages:?}");
    }
    assert!(!pages.iter().any(|name| name.contains("__")), "{pages:?}");
}
