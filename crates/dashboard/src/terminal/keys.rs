//! [`KeyReader`]: the keys that a user presses, read from a terminal that may hang up at any time.
//!
//! The reader of `crossterm` is not used: it repeats a read that returns the end of the input or an error for ever, so that a
//! program outlives its terminal at full speed.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Largest number of bytes of one read.
const READ_BYTES: usize = 256;
/// Bytes of an unfinished key above which they are dropped: the longest key has eight.
const PENDING_BYTES_MAX: usize = 32;

/// The result of a look at the terminal.
#[derive(Debug, PartialEq)]
pub(super) enum TerminalInput {
    /// Keys; none at the end of the wait.
    Keys(Vec<KeyEvent>),
    /// The terminal has hung up, or its input has ended.
    Ended,
}

/// Reads keys from a terminal in raw mode.
pub(super) struct KeyReader<F> {
    terminal: F,
    /// The start of a key whose rest has not arrived.
    pending: Vec<u8>,
}

impl<F: AsFd> KeyReader<F> {
    pub(super) fn new(terminal: F) -> Self {
        Self {
            terminal,
            pending: Vec::new(),
        }
    }

    /// Waits for keys, at most for `limit`.
    ///
    /// # Errors
    /// The system cannot wait for the terminal. A terminal that cannot be read has ended.
    pub(super) fn wait(&mut self, limit: Duration) -> io::Result<TerminalInput> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut watched = [PollFd::new(&self.terminal, PollFlags::IN)];
        match poll(&mut watched, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => return Ok(TerminalInput::Keys(self.rest())),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let found = watched[0].revents();
        if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(TerminalInput::Ended);
        }
        let mut bytes = [0; READ_BYTES];
        match rustix::io::read(&self.terminal, &mut bytes) {
            Ok(length @ 1..) => {
                self.pending.extend_from_slice(&bytes[..length]);
                Ok(TerminalInput::Keys(self.parse(false)))
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(TerminalInput::Keys(Vec::new())),
            Ok(_) | Err(_) => Ok(TerminalInput::Ended),
        }
    }

    /// Returns the keys of bytes that nothing follows: a lone escape is the key `Esc`.
    fn rest(&mut self) -> Vec<KeyEvent> {
        self.parse(true)
    }

    /// Removes the complete keys from the pending bytes.
    fn parse(&mut self, is_end: bool) -> Vec<KeyEvent> {
        let mut keys = Vec::new();
        let mut at = 0;
        while let Some((key, length)) = first_key(&self.pending[at..], is_end) {
            keys.extend(key);
            at += length;
        }
        self.pending.drain(..at);
        if is_end || self.pending.len() > PENDING_BYTES_MAX {
            self.pending.clear();
        }
        keys
    }
}

/// Parses the first key, which is `None` if it has no meaning here, and returns the number of its bytes; `None` if the bytes
/// are the start of a longer key.
fn first_key(bytes: &[u8], is_end: bool) -> Option<(Option<KeyEvent>, usize)> {
    let plain = |code| Some(KeyEvent::new(code, KeyModifiers::NONE));
    match *bytes {
        [] => None,
        [0x1b] => is_end.then(|| (plain(KeyCode::Esc), 1)),
        [0x1b, b'[' | b'O', ..] => escape_sequence(bytes),
        [0x1b, ..] => Some((plain(KeyCode::Esc), 1)),
        [b'\t', ..] => Some((plain(KeyCode::Tab), 1)),
        [b'\r' | b'\n', ..] => Some((plain(KeyCode::Enter), 1)),
        [0x7f, ..] => Some((plain(KeyCode::Backspace), 1)),
        [control @ 1..=26, ..] => {
            let letter = KeyCode::Char(char::from(control - 1 + b'a'));
            Some((Some(KeyEvent::new(letter, KeyModifiers::CONTROL)), 1))
        }
        [first, ..] => {
            // The number of leading ones is the length of a character in UTF-8.
            let length = match first.leading_ones() {
                0 => 1,
                length @ 2..=4 => length as usize,
                _ => return Some((None, 1)),
            };
            let character = bytes.get(..length)?;
            let letter = std::str::from_utf8(character).ok();
            let letter = letter.and_then(|letter| letter.chars().next());
            let length = letter.map_or(1, |_| length);
            Some((
                letter.and_then(|letter| plain(KeyCode::Char(letter))),
                length,
            ))
        }
    }
}

/// Parses a key such as `ESC [ A` or `ESC [ 5 ~`, with or without modifiers.
fn escape_sequence(bytes: &[u8]) -> Option<(Option<KeyEvent>, usize)> {
    let last = bytes[2..]
        .iter()
        .position(|byte| (0x40..=0x7e).contains(byte))?
        + 2;
    let number = bytes[2..last].split(|byte| *byte == b';').next();
    let code = match (bytes[last], number) {
        (b'A', _) => KeyCode::Up,
        (b'B', _) => KeyCode::Down,
        (b'C', _) => KeyCode::Right,
        (b'D', _) => KeyCode::Left,
        (b'H', _) | (b'~', Some(b"1" | b"7")) => KeyCode::Home,
        (b'F', _) | (b'~', Some(b"4" | b"8")) => KeyCode::End,
        (b'Z', _) => KeyCode::BackTab,
        (b'~', Some(b"5")) => KeyCode::PageUp,
        (b'~', Some(b"6")) => KeyCode::PageDown,
        _ => return Some((None, last + 1)),
    };
    Some((Some(KeyEvent::new(code, KeyModifiers::NONE)), last + 1))
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Write, pipe};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(1);

    fn codes(found: TerminalInput) -> Vec<KeyCode> {
        match found {
            TerminalInput::Keys(keys) => keys.into_iter().map(|key| key.code).collect(),
            TerminalInput::Ended => panic!("the input has ended"),
        }
    }

    #[test]
    fn keys_are_parsed_also_where_their_bytes_arrive_apart() {
        let (input, mut user) = pipe().unwrap();
        let mut reader: KeyReader<PipeReader> = KeyReader::new(input);
        let mut press = |bytes: &[u8]| {
            user.write_all(bytes).unwrap();
            codes(reader.wait(LIMIT).unwrap())
        };
        use KeyCode::{BackTab, Char, Down, End, Esc, Home, PageDown, PageUp, Tab, Up};
        assert_eq!(
            press(b"q?3 \t"),
            [Char('q'), Char('?'), Char('3'), Char(' '), Tab]
        );
        assert_eq!(
            press(b"\x1b[A\x1bOB\x1b[1;5H\x1b[4~"),
            [Up, Down, Home, End]
        );
        assert_eq!(press(b"\x1b[5~\x1b[6~\x1b[Z"), [PageUp, PageDown, BackTab]);
        assert_eq!(press(b"\x1b["), []);
        assert_eq!(press(b"Aj"), [Up, Char('j')]);
        assert_eq!(
            press("ä\u{1f600}k".as_bytes()),
            [Char('ä'), Char('😀'), Char('k')]
        );
        assert_eq!(
            press(b"\x1b[15~\xff\x1bq"),
            [Esc, Char('q')],
            "unknown keys are dropped"
        );
        assert_eq!(press(b"\x1b"), [], "the start of a key, or the key Esc");
        assert_eq!(codes(reader.wait(LIMIT).unwrap()), [Esc]);
        assert_eq!(codes(reader.wait(LIMIT).unwrap()), []);
    }

    #[test]
    fn control_keys_have_their_letter() {
        let (input, mut user) = pipe().unwrap();
        let mut reader = KeyReader::new(input);
        user.write_all(&[3]).unwrap();
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let found = reader.wait(LIMIT).unwrap();
        assert_eq!(found, TerminalInput::Keys(vec![key]));
    }

    #[test]
    fn the_end_of_the_input_is_not_a_key() {
        let (input, user) = pipe().unwrap();
        let mut reader = KeyReader::new(input);
        drop(user);
        for _ in 0..2 {
            assert_eq!(reader.wait(LIMIT).unwrap(), TerminalInput::Ended);
        }
        let mut empty = KeyReader::new(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(empty.wait(LIMIT).unwrap(), TerminalInput::Ended);
    }
}
