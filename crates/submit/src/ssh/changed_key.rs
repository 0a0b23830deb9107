//! [`ChangedKey`]: the answer of `ssh` for a host with another key than before, which is a banner of many lines.

use crate::shell_words;

/// A part of the banner.
const BANNER: &str = "REMOTE HOST IDENTIFICATION HAS CHANGED";

/// The report of the banner. Versions of `ssh` leave out parts of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChangedKey {
    /// The file and the number of the line with the old key.
    old: Option<(String, String)>,
    /// The host as the file names it.
    entry: Option<String>,
    /// The fingerprint of the new key.
    fingerprint: Option<String>,
}

impl ChangedKey {
    /// Finds the banner in the output of `ssh`.
    pub(super) fn find(text: &str) -> Option<Self> {
        text.contains(BANNER).then(|| {
            let mut found = Self::default();
            text.lines().for_each(|line| found.read(line.trim()));
            found
        })
    }

    fn read(&mut self, line: &str) {
        if line.starts_with("SHA256:") {
            self.fingerprint = Some(line.trim_end_matches('.').to_owned());
        } else if let Some(rest) = line.strip_prefix("Offending ") {
            let place = rest.split_once(" key in ");
            let place = place.and_then(|(_, place)| place.rsplit_once(':'));
            if let Some((file, number)) = place {
                self.old = Some((file.to_owned(), number.to_owned()));
            }
        } else if line.starts_with("ssh-keygen ") {
            let entry = line.split_once(" -R ").map(|(_, rest)| rest);
            let entry = entry.map(|rest| rest.split(" -f ").next().unwrap_or(rest));
            self.entry = entry.map(|entry| entry.trim_matches('"').to_owned());
        } else if let Some(rest) = line.strip_prefix("Host key for ") {
            // Not every `ssh` proposes a command.
            let entry = rest.split_once(" has changed").map(|(entry, _)| entry);
            self.entry = self.entry.take().or(entry.map(str::to_owned));
        }
    }

    /// Returns the problem as one line.
    pub(super) fn problem(&self) -> String {
        let host = match &self.entry {
            Some(entry) => format!(" for `{}`", entry.escape_debug()),
            None => String::new(),
        };
        match &self.old {
            Some((file, number)) => format!(
                "its host key has changed: line {} of {} has another key{host}",
                number.escape_debug(),
                file.escape_debug()
            ),
            None => "its host key has changed: your known hosts have another key".to_owned(),
        }
    }

    /// Returns the next action for `host`.
    pub(super) fn help(&self, host: &str) -> String {
        let confirm = match &self.fingerprint {
            Some(fingerprint) => format!(
                "find out why, such as by asking its administrator whether its key is {}",
                fingerprint.escape_debug()
            ),
            None => "find out why".to_owned(),
        };
        let forget = match (&self.old, &self.entry) {
            (Some((file, _)), Some(entry)) => {
                let words = ["ssh-keygen", "-f", file.as_str(), "-R", entry.as_str()];
                format!("`{}` forgets the old one", shell_words::join(words))
            }
            _ => format!("`ssh {host}` shows how to forget the old one"),
        };
        format!("{confirm}; then {forget}, and `ssh {host}` accepts the new one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n\
        @    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n\
        @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n\
        IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r\n\
        Someone could be eavesdropping on you right now (man-in-the-middle attack)!\r\n\
        It is also possible that a host key has just been changed.\r\n\
        The fingerprint for the ED25519 key sent by the remote host is\n\
        SHA256:Yx3e.\r\n\
        Please contact your system administrator.\r\n\
        Add correct host key in /home/me/.ssh/known_hosts to get rid of this message.\r\n\
        Offending ECDSA key in /home/me/.ssh/known_hosts:3\r\n  \
        remove with:\r\n  \
        ssh-keygen -f \"/home/me/.ssh/known_hosts\" -R \"[10.0.0.1]:2222\"\r\n\
        Host key for [10.0.0.1]:2222 has changed and you have requested strict checking.\r\n\
        Host key verification failed.\r\n";

    #[test]
    fn a_changed_key_is_one_sentence_with_the_old_entry_and_the_command_for_it() {
        // As a distribution prints it, as its developers do, and as an earlier version did.
        let plain: String = DEBIAN
            .split_inclusive('\n')
            .filter(|line| !line.contains("remove with") && !line.contains("ssh-keygen"))
            .collect();
        let earlier = DEBIAN.replace("-R \"[10.0.0.1]:2222\"", "-R [10.0.0.1]:2222");
        for text in [DEBIAN, &plain, &earlier] {
            let found = ChangedKey::find(text).unwrap();
            assert_eq!(
                found.problem(),
                "its host key has changed: line 3 of /home/me/.ssh/known_hosts has another key for \
                 `[10.0.0.1]:2222`"
            );
            assert_eq!(
                found.help("gpu1"),
                "find out why, such as by asking its administrator whether its key is SHA256:Yx3e; then \
                 `ssh-keygen -f /home/me/.ssh/known_hosts -R '[10.0.0.1]:2222'` forgets the old one, and `ssh gpu1` \
                 accepts the new one"
            );
        }
        let short = ChangedKey::find("REMOTE HOST IDENTIFICATION HAS CHANGED").unwrap();
        assert_eq!(short, ChangedKey::default());
        assert_eq!(ChangedKey::find("Host key verification failed."), None);
    }
}
