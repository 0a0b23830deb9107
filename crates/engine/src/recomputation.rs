//! [`Recomputation`]: the layers that compute their activations again instead of keeping them.

use crate::error::EngineError;

/// What separates the first and the last name of a range of layers.
const TO: &str = "..";

/// The layers whose activations the backward pass computes again instead of keeping them: see [`Recomputed`](crate::Recomputed).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Recomputation {
    /// None.
    #[default]
    Off,
    /// All but the last one, whose backward pass follows its forward pass.
    All,
    /// Those with these names; `first..last` is all layers from one to another.
    Layers(Vec<String>),
}

impl Recomputation {
    /// Returns the first `count` of the named layers as one range.
    #[must_use]
    pub fn first(count: usize, names: &[&str]) -> Self {
        match (names.first(), count.min(names.len())) {
            (None, _) | (_, 0) => Self::Off,
            (Some(first), 1) => Self::Layers(vec![(*first).to_owned()]),
            (Some(first), count) => Self::Layers(vec![format!("{first}{TO}{}", names[count - 1])]),
        }
    }

    /// Returns whether each layer is computed again; `names` are the names of all layers in order.
    ///
    /// # Errors
    /// [`EngineError::UnknownLayer`] for a name that no layer has, and for a range whose last layer precedes its first one.
    pub fn chosen(&self, names: &[&str]) -> Result<Vec<bool>, EngineError> {
        let mut chosen = vec![false; names.len()];
        match self {
            Self::Off => {}
            Self::All => {
                let last = names.len().saturating_sub(1);
                chosen[..last].fill(true);
            }
            Self::Layers(entries) => {
                let unknown = |name: &str| EngineError::UnknownLayer {
                    name: name.to_owned(),
                    known: names.join(", "),
                };
                let find = |name: &str| {
                    let found = names.iter().position(|known| *known == name);
                    found.ok_or_else(|| unknown(name))
                };
                for entry in entries {
                    let (first, last) = entry.split_once(TO).unwrap_or((entry, entry));
                    let (first, last) = (find(first)?, find(last)?);
                    if last < first {
                        return Err(unknown(entry));
                    }
                    chosen[first..=last].fill(true);
                }
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["stem", "block1", "block2", "head"];

    fn layers(entries: &[&str]) -> Recomputation {
        Recomputation::Layers(entries.iter().map(|&entry| entry.to_owned()).collect())
    }

    #[test]
    fn names_and_ranges_choose_layers() {
        let of = |recomputation: Recomputation| recomputation.chosen(&NAMES).unwrap();
        assert_eq!(of(Recomputation::Off), [false; 4]);
        assert_eq!(of(Recomputation::All), [true, true, true, false]);
        assert_eq!(of(layers(&["block2"])), [false, false, true, false]);
        let found = of(layers(&["stem..block1", "head"]));
        assert_eq!(found, [true, true, false, true]);
        assert_eq!(of(layers(&[])), [false; 4]);
        assert!(Recomputation::All.chosen(&[]).unwrap().is_empty());
    }

    #[test]
    fn the_first_layers_are_one_range() {
        for count in 0..=5 {
            let found = Recomputation::first(count, &NAMES).chosen(&NAMES).unwrap();
            let chosen = found.iter().filter(|chosen| **chosen).count();
            assert_eq!(chosen, count.min(4));
            assert!(found[..chosen].iter().all(|chosen| *chosen));
        }
        assert_eq!(Recomputation::first(3, &NAMES), layers(&["stem..block2"]));
        assert_eq!(Recomputation::first(2, &[]), Recomputation::Off);
    }

    #[test]
    fn unknown_names_are_refused_with_those_that_exist() {
        for (entry, name) in [
            ("block7", "block7"),
            ("stem..tail", "tail"),
            ("head..stem", "head..stem"),
        ] {
            let error = layers(&[entry]).chosen(&NAMES).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
            assert!(error.contains("stem, block1, block2, head"), "{error}");
        }
    }
}
