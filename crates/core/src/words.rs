//! Reads the numbers of a message one after the other.

/// The rest of a message.
pub struct WordReader<'a>(pub &'a [u64]);

impl<'a> WordReader<'a> {
    /// Returns the next number; `None` at the end.
    pub fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns the next number, if it fits in 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        u32::try_from(self.u64()?).ok()
    }

    /// Returns the next `count` numbers; `None` if there are fewer.
    pub fn take(&mut self, count: u64) -> Option<&'a [u64]> {
        let count = usize::try_from(count).ok()?;
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Returns flags as numbers of 64 bits.
pub fn packed(flags: &[bool]) -> impl Iterator<Item = u64> + '_ {
    flags.chunks(64).map(|chunk| {
        let bits = chunk.iter().enumerate();
        bits.fold(0, |word, (bit, flag)| word | u64::from(*flag) << bit)
    })
}

/// Returns the first `count` flags of packed numbers.
pub fn unpacked(words: &[u64], count: usize) -> Vec<bool> {
    let flag = |index: usize| {
        let word = words.get(index / 64).copied().unwrap_or_default();
        word >> (index % 64) & 1 == 1
    };
    (0..count).map(flag).collect()
}
