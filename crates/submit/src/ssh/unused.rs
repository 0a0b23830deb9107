//! Which programs and data of a host its jobs use, and the removal of those that none uses.
//!
//! A submission notes its files before it looks for them. A process that removes something renames it first and then
//! looks for notes again. So one of the two sees the other, whichever machines they are on.

/// Notes what a job uses. Is executed in the folder of ronde, with the variables `mark` of the job, `program` and `inputs`: the
/// names of its program and data. `cat` reports a full disk as such, which some shells do not.
pub(super) const NOTE_USE: &str = r#"
mkdir -p uses || exit 71
note=uses/$mark-$(uname -n)-$$-$(date +%s)
printf 'bin/%s\ninputs/%s\n' "$program" "$inputs" | cat > "$note" || { rm -f "$note"; exit 71; }
"#;

/// Removes the programs and data that no job on the host uses. Arguments: the folder of a job that was removed, and the mark of
/// that job. Notes of other jobs without a folder count for a day, because a submission may be copying. A job without a note
/// was submitted by an earlier version: then nothing is removed. Folders left behind by an earlier removal or copy are removed after a day.
/// A folder keeps its name when it is moved, see `STORE_INPUTS`.
pub(super) const REMOVE_UNUSED: &str = r#"
root=${1%/jobs/*}
test "$root" != "$1" && cd -- "$root" && test -d uses || exit 0
test -e "$1" || rm -f "uses/$2"-*
jobs=
for folder in jobs/*/; do
  test -d "$folder" || continue
  owner=$(cat "$folder/owner") || exit 0
  owner=${owner%%-*}
  set -- "uses/$owner"-*
  test -e "$1" || exit 0
  jobs="$jobs $owner"
done
for note in uses/*; do
  test -f "$note" || continue
  owner=${note#uses/}
  owner=${owner%%-*}
  case "$jobs " in *" $owner "*) continue;; esac
  test -z "$(find "$note" -mtime +0)" || rm -f "$note"
done
is_used() { cat uses/* 2>/dev/null | grep -qxF -e "$1"; }
for entry in bin/* inputs/*; do
  test -d "$entry" || continue
  is_used "$entry" && continue
  name=${entry##*/} in=${entry%/*}
  old=$in/.unused-$name-$(uname -n)-$$
  mkdir -- "$old" && mv -- "$entry" "$old" 2>/dev/null && is_used "$entry" && mv -- "$old/$name" "$in" 2>/dev/null
  rm -rf -- "$old"
done
for left in bin/.[!.]* inputs/.[!.]*; do
  test -d "$left" || continue
  test -z "$(find "$left" -prune -mtime +0)" || rm -rf -- "$left"
done
exit 0
"#;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::preparation::tests::run_script;
    use super::*;

    /// The folder of ronde on a host with data `a`, `b` and `c`.
    fn host() -> tempfile::TempDir {
        let disk = tempfile::tempdir().unwrap();
        for name in [
            "inputs/a", "inputs/b", "inputs/c", "bin/a", "bin/b", "jobs", "uses",
        ] {
            std::fs::create_dir_all(disk.path().join(name)).unwrap();
        }
        disk
    }

    fn job(disk: &Path, name: &str, owner: &str) {
        std::fs::create_dir_all(disk.join("jobs").join(name)).unwrap();
        std::fs::write(disk.join("jobs").join(name).join("owner"), owner).unwrap();
    }

    fn uses(disk: &Path, owner: &str, program: &str, inputs: &str) {
        let note = format!(
            "cd {} && mark={owner} program={program} inputs={inputs}\n{NOTE_USE}",
            disk.display()
        );
        assert_eq!(run_script(&note, &[], b"").0, 0);
    }

    /// Removes the files that no job uses after the removal of job `gone`, and returns the remaining ones.
    fn left(disk: &Path) -> Vec<String> {
        let gone = disk.join("jobs/gone").display().to_string();
        assert_eq!(run_script(REMOVE_UNUSED, &[&gone, "gone"], b"").0, 0);
        let list = |kind: &str| {
            let entries = std::fs::read_dir(disk.join(kind)).unwrap().flatten();
            let names = entries.map(|entry| entry.file_name().into_string().unwrap());
            names
                .map(|name| format!("{kind}/{name}"))
                .collect::<Vec<_>>()
        };
        let mut left = [list("bin"), list("inputs")].concat();
        left.sort();
        left
    }

    #[test]
    fn programs_and_data_are_removed_once_no_job_uses_them() {
        let disk = host();
        let disk = disk.path();
        // The note of another host that shares the folder, and one of a submission that is under way.
        job(disk, "one", "1f-2");
        uses(disk, "1f", "a", "a");
        uses(disk, "gone", "b", "c");
        uses(disk, "2e", "a", "b");
        assert_eq!(left(disk), ["bin/a", "inputs/a", "inputs/b"]);
        // A day later, that submission was killed.
        for note in std::fs::read_dir(disk.join("uses")).unwrap().flatten() {
            let file = std::fs::File::options()
                .write(true)
                .open(note.path())
                .unwrap();
            let before = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 86_400);
            file.set_modified(before).unwrap();
        }
        assert_eq!(left(disk), ["bin/a", "inputs/a"]);
        std::fs::remove_dir_all(disk.join("jobs/one")).unwrap();
        assert_eq!(left(disk), [""; 0]);
    }

    #[test]
    fn a_full_disk_leaves_no_empty_note() {
        let disk = host();
        let note = format!(
            "cat() {{ command cat > /dev/full; }}\ncd {} && mark=1f program=a inputs=a\n{NOTE_USE}",
            disk.path().display()
        );
        assert_eq!(run_script(&note, &[], b"").0, 71);
        let notes = std::fs::read_dir(disk.path().join("uses")).unwrap();
        assert_eq!(notes.count(), 0);
    }

    #[test]
    fn nothing_is_removed_while_the_use_of_a_job_is_not_known() {
        let disk = host();
        job(disk.path(), "earlier", "3d");
        assert_eq!(left(disk.path()).len(), 5);
        uses(disk.path(), "3d", "none", "none");
        std::fs::create_dir(disk.path().join("jobs/begins")).unwrap();
        assert_eq!(left(disk.path()).len(), 5, "its owner is not written yet");
        std::fs::remove_dir(disk.path().join("jobs/begins")).unwrap();
        assert_eq!(left(disk.path()), [""; 0]);
        // A folder that is not one of ronde.
        assert_eq!(run_script(REMOVE_UNUSED, &["/nowhere", "x"], b"").0, 0);
    }
}
