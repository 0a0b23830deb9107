//! Texts are continued token by token with the bits of a pass over the whole text.

use ronde_core::seed::SeedTree;
use ronde_engine::{Activation, Chain, EngineError, KeptText, LayerExt, ModelConfig, Precision};

const TOKENS: usize = 50;

fn gpt(positions: usize, tied: bool) -> Chain {
    let config = ModelConfig::Gpt {
        layers: 3,
        width: 32,
        heads: 4,
        dropout: 0.1,
        tied,
        tensor_parts: 1,
    };
    config
        .build(&[positions], TOKENS as u32, &SeedTree::new(7))
        .expect("a model")
}

fn text(number: usize, length: usize) -> Vec<f32> {
    (0..length)
        .map(|at| ((at * 7 + at / 3 + number * 13) % TOKENS) as f32)
        .collect()
}

/// Returns the scores of all positions.
fn whole(chain: &mut Chain, positions: usize, text: &[f32]) -> Vec<f32> {
    let mut padded = text.to_vec();
    padded.resize(positions, 0.0);
    let input = Activation::from_host(&[1, positions], padded);
    let scores = chain.evaluate(input).expect("scores").into_host();
    scores[..text.len() * TOKENS].to_vec()
}

fn extend(chain: &mut Chain, kept: &mut [&mut KeptText], tokens: &[&[f32]]) -> Vec<f32> {
    let input = Activation::from_host(&[kept.len(), tokens[0].len()], tokens.concat());
    let scores = chain.extend_texts(input, kept).expect("scores");
    assert_eq!(scores.shape(), [kept.len(), tokens[0].len(), TOKENS]);
    scores.into_host()
}

#[test]
fn texts_of_several_lengths_are_continued_together() {
    for (tied, precision) in [
        (false, Precision::F32),
        (true, Precision::F32),
        (false, Precision::Bf16),
    ] {
        let positions = 40;
        let mut chain = gpt(positions, tied).with_precision(precision).unwrap();
        let texts = [text(0, 40), text(1, 25)];
        let expected = texts
            .each_ref()
            .map(|text| whole(&mut chain, positions, text));
        let [mut first, mut second] = [KeptText::new(), KeptText::new()];
        // The first text has 17 tokens when the second begins.
        let mut found = [Vec::new(), Vec::new()];
        found[0].extend(extend(&mut chain, &mut [&mut first], &[&texts[0][..14]]));
        found[0].extend(extend(&mut chain, &mut [&mut first], &[&texts[0][14..17]]));
        found[1].extend(extend(&mut chain, &mut [&mut second], &[&texts[1][..2]]));
        for at in 2..25 {
            let tokens = [&texts[0][at + 15..=at + 15], &texts[1][at..=at]];
            let mut both = extend(&mut chain, &mut [&mut first, &mut second], &tokens);
            found[1].extend(both.split_off(TOKENS));
            found[0].extend(both);
        }
        assert_eq!([first.tokens(), second.tokens()], [40, 25]);
        assert!(found == expected, "tied {tied}, {precision:?}");
    }
}

#[test]
fn long_texts_differ_by_rounding_only() {
    let positions = 600;
    let mut chain = gpt(positions, false);
    let text = text(3, positions);
    let expected = whole(&mut chain, positions, &text);
    let mut kept = KeptText::new();
    let mut found = extend(&mut chain, &mut [&mut kept], &[&text[..1]]);
    for at in 1..positions {
        found.extend(extend(&mut chain, &mut [&mut kept], &[&text[at..=at]]));
    }
    let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    let most = most.fold(0.0, f32::max);
    assert!(most < 1e-5, "{most}");
}

#[test]
fn texts_that_cannot_be_continued_are_refused() {
    let mut chain = gpt(8, true);
    let mut kept = KeptText::new();
    extend(&mut chain, &mut [&mut kept], &[&text(0, 8)]);
    let more = Activation::from_host(&[1, 1], vec![0.0]);
    let error = chain.extend_texts(more, &mut [&mut kept]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot continue a text of 8 tokens by 1: the model has 8 positions"
    );
    let two = Activation::from_host(&[2, 1], vec![0.0; 2]);
    let error = chain.extend_texts(two, &mut [&mut KeptText::new()]);
    assert!(matches!(error, Err(EngineError::Shape { .. })), "{error:?}");
    let bert = ModelConfig::Bert {
        layers: 1,
        width: 8,
        heads: 2,
        dropout: 0.0,
        tensor_parts: 1,
    };
    let mut bert = bert.build(&[8], 10, &SeedTree::new(1)).unwrap();
    assert!(!bert.layout().tensors.is_empty());
    let one = Activation::from_host(&[1, 1], vec![0.0]);
    let error = bert.extend_texts(one, &mut [&mut KeptText::new()]);
    let error = error.unwrap_err().to_string();
    assert_eq!(
        error,
        "layer block1: cannot continue a text: its outputs depend on later positions"
    );
}
