//! Ends a command that waits for a job when its terminal hangs up, or when the reader of its output has closed the pipe.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use signal_hook::consts::SIGHUP;

use crate::command::exit;
use crate::command::signals::{end_now, is_ignored};

/// What has no reader any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LostReader {
    /// A terminal has hung up, and the system has not sent SIGHUP: the command is not of the terminal's foreground.
    Terminal,
    /// The reader of standard output has closed the pipe, such as `head`.
    Pipe,
}

/// Ends this process when its terminal hangs up, as SIGHUP does. A command that starts with an ignored SIGHUP, as by `nohup`,
/// outlives its terminal.
pub(crate) fn end_with_terminal() {
    watch(false);
}

/// The same, and ends this process when the reader of its standard output closes the pipe.
pub(crate) fn end_with_reader() {
    watch(true);
}

fn watch(ends_with_pipe: bool) {
    let outlives_terminal = is_ignored(SIGHUP);
    let watching = std::thread::Builder::new().name("reader".to_owned());
    // Without the thread, the next output ends the command.
    let _ = watching.spawn(move || {
        let (input, output, errors) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let mut watched = vec![];
        for file in [input.as_fd(), output.as_fd(), errors.as_fd()] {
            // A terminal that has hung up is no longer recognised as one; other devices never hang up.
            if kind(file) == FileType::CharacterDevice && !outlives_terminal {
                watched.push((file, LostReader::Terminal));
            }
        }
        let is_pipe = matches!(kind(output.as_fd()), FileType::Fifo | FileType::Socket);
        if is_pipe && ends_with_pipe {
            watched.push((output.as_fd(), LostReader::Pipe));
        }
        match first_lost(&watched) {
            Some(LostReader::Terminal) => end_now(128 + SIGHUP),
            Some(LostReader::Pipe) => end_now(exit::DONE),
            None => {}
        }
    });
}

fn kind(file: BorrowedFd<'_>) -> FileType {
    let found = rustix::fs::fstat(file);
    found.map_or(FileType::Unknown, |found| {
        FileType::from_raw_mode(found.st_mode)
    })
}

/// Waits until one of the files has no reader any more; `None` if the system cannot report it.
fn first_lost(watched: &[(BorrowedFd<'_>, LostReader)]) -> Option<LostReader> {
    let mut polled: Vec<PollFd<'_>> = watched
        .iter()
        .map(|(file, _)| PollFd::from_borrowed_fd(*file, PollFlags::empty()))
        .collect();
    loop {
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return None,
        }
        let lost = polled.iter().position(|file| {
            let lost = PollFlags::HUP | PollFlags::ERR;
            file.revents().intersects(lost)
        });
        return lost.map(|position| watched[position].1);
    }
}

#[cfg(test)]
mod tests {
    use std::io::pipe;

    use super::*;

    #[test]
    fn a_closed_reader_is_noticed_without_any_output() {
        let (reader, writer) = pipe().unwrap();
        let (_kept_reader, kept) = pipe().unwrap();
        let files = [
            (kept.as_fd(), LostReader::Terminal),
            (writer.as_fd(), LostReader::Pipe),
        ];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| first_lost(&files));
            drop(reader);
            assert_eq!(waiting.join().unwrap(), Some(LostReader::Pipe));
        });
    }
}
