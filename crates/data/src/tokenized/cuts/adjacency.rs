//! [`Adjacency`]: which characters can be neighbours in a match of a regular expression.
//!
//! A match, or a look beyond it, crosses from a character to the next one only where the expression has an element
//! for the first one that another element for the second one can follow (the pairs of Glushkov's automaton). Where no such
//! pair fits, a search before the position sees the next character as it sees the end of the text: it fails on both.

use fancy_regex::{Expr, LookAround, Regex};

/// The pairs of elements of an expression that can match neighbours.
#[derive(Debug)]
pub(super) struct Adjacency {
    /// Expressions for one character each.
    elements: Vec<Regex>,
    pairs: Vec<(usize, usize)>,
}

/// The first and last elements of a part of an expression.
struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
    /// Whether it matches the empty text.
    is_optional: bool,
}

impl Ends {
    fn empty() -> Self {
        Self {
            first: Vec::new(),
            last: Vec::new(),
            is_optional: true,
        }
    }
}

impl Adjacency {
    /// Analyses an expression; `None` if it looks at preceding text or at the ends of the text, has back references, or matches
    /// the empty text.
    pub(super) fn parse(pattern: &str) -> Option<Self> {
        let tree = Expr::parse_tree(pattern).ok()?;
        let mut adjacency = Self {
            elements: Vec::new(),
            pairs: Vec::new(),
        };
        let ends = adjacency.visit(&tree.expr)?;
        (!ends.is_optional).then_some(adjacency)
    }

    /// Returns whether `before` and `after` can be neighbours in a match or in a text that a match looks at.
    pub(super) fn joins(&self, before: char, after: char) -> bool {
        let of = |character: char| -> Vec<bool> {
            let mut bytes = [0; 4];
            let text = &*character.encode_utf8(&mut bytes);
            // An element that cannot be evaluated may match.
            let matches = |element: &Regex| element.is_match(text).unwrap_or(true);
            self.elements.iter().map(matches).collect()
        };
        let (before, after) = (of(before), of(after));
        self.pairs
            .iter()
            .any(|&(first, second)| before[first] && after[second])
    }

    fn visit(&mut self, expression: &Expr) -> Option<Ends> {
        match expression {
            Expr::Empty => Some(Ends::empty()),
            Expr::Any { newline: true } => self.element("(?s:.)"),
            Expr::Any { newline: false } => self.element("."),
            Expr::Literal { val, casei } => {
                let mut ends = Ends::empty();
                for character in val.chars() {
                    let escaped =
                        fancy_regex::escape(character.encode_utf8(&mut [0; 4])).into_owned();
                    let next = self.element(&in_case(&escaped, *casei))?;
                    ends = self.then(ends, next);
                }
                Some(ends)
            }
            Expr::Delegate {
                inner,
                size: 1,
                casei,
            } => self.element(&in_case(inner, *casei)),
            Expr::Concat(parts) => parts.iter().try_fold(Ends::empty(), |ends, part| {
                let next = self.visit(part)?;
                Some(self.then(ends, next))
            }),
            Expr::Alt(parts) => {
                let mut all = Ends {
                    is_optional: false,
                    ..Ends::empty()
                };
                for part in parts {
                    let ends = self.visit(part)?;
                    all.first.extend(ends.first);
                    all.last.extend(ends.last);
                    all.is_optional |= ends.is_optional;
                }
                Some(all)
            }
            Expr::Group(inner) | Expr::AtomicGroup(inner) => self.visit(inner),
            Expr::LookAround(inner, LookAround::LookAhead | LookAround::LookAheadNeg) => {
                // Its elements can follow the preceding ones, but the next match does not follow them.
                let ends = self.visit(inner)?;
                Some(Ends {
                    first: ends.first,
                    ..Ends::empty()
                })
            }
            Expr::Repeat { child, lo, hi, .. } => {
                let ends = self.visit(child)?;
                if *hi > 1 {
                    self.join(&ends.last, &ends.first);
                }
                Some(Ends {
                    is_optional: ends.is_optional || *lo == 0,
                    ..ends
                })
            }
            _ => None,
        }
    }

    /// Adds an element that matches one character.
    fn element(&mut self, expression: &str) -> Option<Ends> {
        let element = Regex::new(&format!(r"\A(?:{expression})\z")).ok()?;
        self.elements.push(element);
        let number = self.elements.len() - 1;
        Some(Ends {
            first: vec![number],
            last: vec![number],
            is_optional: false,
        })
    }

    fn join(&mut self, before: &[usize], after: &[usize]) {
        for &first in before {
            self.pairs
                .extend(after.iter().map(|&second| (first, second)));
        }
    }

    fn then(&mut self, before: Ends, after: Ends) -> Ends {
        self.join(&before.last, &after.first);
        let mut ends = Ends {
            first: before.first,
            last: after.last,
            is_optional: before.is_optional && after.is_optional,
        };
        if before.is_optional {
            ends.first.extend(after.first);
        }
        if after.is_optional {
            ends.last.extend(before.last);
        }
        ends
    }
}

fn in_case(expression: &str, ignores_case: bool) -> String {
    match ignores_case {
        true => format!("(?i:{expression})"),
        false => expression.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_matches_and_in_what_follows_them_are_found() {
        for (pattern, joined, apart) in [
            (r"ab|cd", "ab cd", "ba bc ac"),
            (r"a+b?c", "aa ab ac bc", "ba cc bb"),
            (r"a(?!b)", "ab", "aa ba"),
            (r"a(?=bc)d", "ab bc ad", "cd bd"),
            (r"(?i:'s|'LL)", "'S 's 'l LL", "s' sl"),
            (r"[^x]{1,3}y", "ay ab", "xa yx xy"),
            (r"a{1}b", "ab", "aa"),
            (r"(?:a|b)*c", "ab ba aa bc", "ca cc"),
            (r"(?>a+)b", "aa ab", "ba"),
        ] {
            let adjacency = Adjacency::parse(pattern).unwrap();
            let joins = |pair: &str| {
                let pair: Vec<char> = pair.chars().collect();
                adjacency.joins(pair[0], pair[1])
            };
            assert!(joined.split(' ').all(joins), "{pattern}");
            assert!(!apart.split(' ').any(joins), "{pattern}");
        }
    }

    #[test]
    fn expressions_that_look_elsewhere_are_refused() {
        for pattern in [
            "^a", "a$", r"\ba", "(?<=a)b", "(?<!a)b", r"(a)\1", "a*", r"\Ga", "(",
        ] {
            assert!(Adjacency::parse(pattern).is_none(), "{pattern}");
        }
    }
}
