//! Features of text models: tied tables, and padding.
use crate::layer::LayerExt;

use super::*;

fn case_of(name: &str) -> &'static ModelCase {
    let found = CASES.iter().find(|case| case.name == name);
    found.expect("a case of this name")
}

#[test]
fn a_tied_model_cannot_be_cut() {
    let case = case_of("gpt_tied");
    for cut in 1..case.build().len() {
        let Err(error) = case.build().cut(&[cut]) else {
            panic!("it was cut before {cut}");
        };
        let text = error.to_string();
        assert!(text.contains("`embedding.token`"), "{text}");
    }
    let expected = case.whole(case.build());
    assert_eq!(
        expected,
        case.whole(
            case.build()
                .recomputing(&crate::Recomputation::All)
                .unwrap()
        )
    );
    // Two shards are pending at once, and end in another order than they began.
    let mut chain = case.build();
    let arena = arena(&chain);
    let mut found = Vec::new();
    for _ in 0..2 {
        let outputs = [0, 1].map(|shard| {
            let output = chain
                .forward_shard(case.input(), &training(0, shard))
                .unwrap();
            case.loss(&output).gradient
        });
        let each = [1, 0].map(|shard| {
            let mut gradients = vec![f32::NAN; arena.len()];
            let given = outputs[shard].iter().map(|g| g * (1.0 + shard as f32));
            let given = Activation::from_host(&[3, 10, 12], given.collect());
            let shard = training(0, shard as u32).shard;
            chain
                .backward_shard(shard, given, &mut gradients, arena.ranges(), false)
                .unwrap();
            gradients[arena.range(0)].to_vec()
        });
        assert_ne!(each[0], each[1]);
        found.push(each);
    }
    assert_eq!(found[0], found[1]);
    // The output layer's gradient is dropped with the step.
    let output = chain.forward_shard(case.input(), &training(0, 5)).unwrap();
    let given = Activation::from_host(&[3, 10, 12], case.loss(&output).gradient);
    let last = chain.len() - 1;
    let (shard, ranges) = (training(0, 5).shard, arena.ranges());
    let of_last = &ranges[chain.tensors_of(last)];
    let mut gradients = vec![0.0; arena.len()];
    chain.layers_mut()[last]
        .backward_shard(shard, given, &mut gradients, of_last, true)
        .unwrap();
    chain.discard_all();
    let of_head = Activation::from_host(&[3, 10, 16], vec![1.0; 480]);
    chain.forward_shard(case.input(), &training(0, 5)).unwrap();
    let error = chain.layers_mut()[0]
        .backward_shard(shard, of_head, &mut gradients, ranges, false)
        .unwrap_err();
    assert!(error.to_string().contains("head"), "{error}");
}

#[test]
fn padding_and_tokens_after_it_do_not_change_a_sample() {
    let case = case_of("transformer_padded");
    let mut chain = case.build();
    let mut outputs = |change: &dyn Fn(&mut [f32])| {
        let mut values = case.input().into_host();
        change(&mut values);
        let input = Activation::from_host(case.shape, values);
        let output = chain.evaluate(input).unwrap().into_host();
        output[..60].to_vec()
    };
    let plain = outputs(&|_| ());
    // If the padding of the first sample were attended to, another position's vector would change
    // the result.
    let tensors = case.build().layout().tensors.clone();
    assert_eq!(tensors[1].name, "embedding.position");
    let others = outputs(&|values| values[9..].fill(5.0));
    assert_eq!(bits(&plain), bits(&others));
    let longer = outputs(&|values| values[2] = 1.0);
    assert_ne!(bits(&plain), bits(&longer));
    let (mut state, arena) = state(&case.build());
    let mut moved = case.build();
    let position = arena.range(1);
    state[position.start + 2 * 16..position.start + 4 * 16].fill(9.0);
    moved.load(&state, arena.ranges());
    let found = moved.evaluate(case.input()).unwrap().into_host();
    assert_eq!(bits(&plain), bits(&found[..60]));
}
