//! Property tests: no input causes a panic, and every accepted run round-trips.

use proptest::prelude::*;

use super::{DEFAULT_RUN_FILE, Document, Override, load};

fn never_panics(text: &str) {
    match load(text) {
        Ok((run, document)) => {
            let _ = document.render_notices(true);
            let again = load(&run.to_toml().unwrap()).unwrap().0;
            assert_eq!(again, run);
        }
        Err(error) => {
            assert!(!error.render(false).is_empty());
            assert!(!error.render(true).is_empty());
        }
    }
}

/// Generates a fragment of a run file that may be invalid in its position.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z_.]{1,12} = [0-9a-z\"\\[\\]{}.,= -]{0,12}\n",
        "\\[(run|train|data|model|comm|check|workers|optimizer|schedule|odd)\\]\n",
        "(kind|source|epochs|count|name|shape) = (1|-1|\"csv\"|\"mlp\"|\\[1, 2\\]|nan|\\{kind = 1\\})\n",
        "\\PC{0,20}\n",
        "[\\r\\n\\t \u{0}\u{feff}é\u{202e}]{0,6}",
    ]
}

proptest! {
    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        never_panics(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_fragments(fragments in proptest::collection::vec(fragment(), 0..12)) {
        never_panics(&fragments.concat());
    }

    #[test]
    fn a_damaged_run_file(at in 0..DEFAULT_RUN_FILE.len(), cut in 0..40_usize, put in "\\PC{0,6}") {
        let mut text = DEFAULT_RUN_FILE.to_owned();
        text.replace_range(at..(at + cut).min(text.len()), &put);
        never_panics(&text);
    }

    #[test]
    fn random_arguments(path in "\\PC{0,12}|(train|data|model)\\.(kind|source|epochs|x)", value in "\\PC{0,12}", name in "\\PC{0,8}") {
        let overrides = [
            Override::Set(format!("{path}={value}")),
            Override::Set(value.clone()),
            Override::Flag { name: name.clone(), path, value: value.clone() },
        ];
        let environment = [(format!("RONDE_SET_{name}"), value)];
        if let Err(error) = Document::load(DEFAULT_RUN_FILE, &name, &environment, &overrides) {
            prop_assert!(!error.render(true).is_empty());
        }
    }
}
