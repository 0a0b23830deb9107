//! Layers in parts: close to whole layers, and the same bits whichever process computes which part.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex};

use ronde_core::exact::{TreeSum, cover};
use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{Buffer, DType, PartTransfer, Shard, Step};
use ronde_engine::{
    Activation, Chain, CrossEntropy, ForwardContext, IGNORED, KeptText, Layer, LayerExt, Loss,
    Mode, ModelConfig, NotSummed, PartExchange, PartPlace, PassEnds, Precision, Predictions,
    SharedState,
};

const CLASSES: u32 = 25;

fn models(parts: u32) -> Vec<(&'static str, ModelConfig, Vec<usize>)> {
    let gpt = |tied| ModelConfig::Gpt {
        layers: 2,
        width: 24,
        heads: 12,
        dropout: 0.1,
        tied,
        tensor_parts: parts,
    };
    let bert = ModelConfig::Bert {
        layers: 1,
        width: 24,
        heads: 12,
        dropout: 0.0,
        tensor_parts: parts,
    };
    let transformer = ModelConfig::Transformer {
        source: 5,
        padding: Some(0),
        layers: 1,
        width: 24,
        heads: 12,
        dropout: 0.1,
        tensor_parts: parts,
    };
    let mlp = ModelConfig::Mlp {
        hidden: vec![25, 46],
        tensor_parts: parts,
    };
    vec![
        ("gpt", gpt(false), vec![9]),
        ("tied gpt", gpt(true), vec![9]),
        ("bert", bert, vec![9]),
        ("transformer", transformer, vec![11]),
        ("mlp", mlp.clone(), vec![7]),
        ("mlp", mlp, vec![2, 2, 3]),
    ]
}

fn input(name: &str, sample: &[usize]) -> Activation {
    let elements: usize = 3 * sample.iter().product::<usize>();
    let values = (0..elements).map(|at| match name {
        "mlp" => (at as f32 * 0.7).sin(),
        _ => ((at * 7 + at / 5) % CLASSES as usize) as f32,
    });
    Activation::from_host(&[&[3], sample].concat(), values.collect())
}

fn context() -> ForwardContext {
    ForwardContext {
        seeds: SeedTree::new(5),
        step: Step(2),
        shard: Shard(1),
        layer: 0,
        mode: Mode::Train,
    }
}

/// The outputs and gradients of a pass.
struct Pass {
    outputs: Vec<f32>,
    gradients: Vec<(TensorEntry, Vec<f32>)>,
}

/// Runs forward and backward of a chain; tensors of other parts have no gradient.
fn pass(chain: &mut Chain, input: Activation, own: &Range<u32>, in_halves: bool) -> Pass {
    let has = |tensor: &TensorEntry| {
        let part = tensor.part.as_ref();
        part.is_none_or(|part| own.contains(&part.index))
    };
    let tensors = chain.layout().tensors.clone();
    let lengths = tensors
        .iter()
        .map(|tensor| if has(tensor) { tensor.elements() } else { 0 });
    let arena = Arena::new(lengths);
    let output = chain.forward_shard(input, &context()).unwrap();
    let slopes = (0..output.elements()).map(|at| (at as f32 * 0.3).cos() / 10.0);
    let slopes = Activation::from_host(output.shape(), slopes.collect());
    let mut gradients = vec![f32::NAN; arena.len()];
    if in_halves {
        chain.backward_input(Shard(1), slopes, false).unwrap();
        chain
            .backward_weights(Shard(1), &mut gradients, arena.ranges())
            .unwrap();
    } else {
        chain
            .backward_shard(Shard(1), slopes, &mut gradients, arena.ranges(), false)
            .unwrap();
    }
    let each = tensors.into_iter().zip(arena.ranges());
    let each = each.filter(|(tensor, _)| has(tensor));
    Pass {
        outputs: output.on_host().into_host(),
        gradients: each
            .map(|(tensor, range)| (tensor, gradients[range.clone()].to_vec()))
            .collect(),
    }
}

/// Threads that exchange values in memory.
struct Threads {
    bounds: Vec<u32>,
    barrier: Barrier,
    given: Mutex<Vec<Vec<Vec<f32>>>>,
}

struct OneThread {
    all: Arc<Threads>,
    rank: usize,
    /// The exchanges in their order; a rank knows its parts of the gathered values.
    log: Mutex<Vec<PartTransfer>>,
}

impl OneThread {
    fn new(all: &Arc<Threads>, rank: usize) -> Arc<Self> {
        Arc::new(Self {
            all: all.clone(),
            rank,
            log: Mutex::default(),
        })
    }

    /// Checks that the rank made the exchanges of a plan, each once and in its order.
    fn check(&self, planned: impl IntoIterator<Item = PartTransfer>, name: &str) {
        let own = self.all.bounds[self.rank] as usize..self.all.bounds[self.rank + 1] as usize;
        let of_rank = |transfer| match transfer {
            PartTransfer::Gather { elements } => PartTransfer::Gather {
                elements: vec![elements[own.clone()].iter().sum()],
            },
            other => other,
        };
        let planned: Vec<PartTransfer> = planned.into_iter().map(of_rank).collect();
        assert!(!planned.is_empty());
        assert_eq!(*self.log.lock().unwrap(), planned, "{name}");
    }

    fn exchange(&self, own: Vec<Vec<f32>>) -> Vec<Vec<Vec<f32>>> {
        self.all.given.lock().unwrap()[self.rank] = own;
        self.all.barrier.wait();
        let all = self.all.given.lock().unwrap().clone();
        self.all.barrier.wait();
        all
    }
}

impl PartExchange for OneThread {
    fn sum(&self, subtrees: Vec<Vec<f32>>) -> Result<Vec<f32>, NotSummed> {
        let parts = *self.all.bounds.last().unwrap();
        let elements = subtrees[0].len();
        self.log
            .lock()
            .unwrap()
            .push(PartTransfer::Sum { elements });
        let mut tree = TreeSum::new(parts);
        for (rank, subtrees) in self.exchange(subtrees).into_iter().enumerate() {
            let run = self.all.bounds[rank]..self.all.bounds[rank + 1];
            for (node, values) in cover(run, parts).into_iter().zip(subtrees) {
                let mut buffer = Buffer::host(DType::F32, values.len());
                buffer.as_mut_slice::<f32>().copy_from_slice(&values);
                tree.add(node, buffer);
            }
        }
        let (_, sum) = tree.take().pop().unwrap();
        Ok(sum.as_slice::<f32>().to_vec())
    }

    fn sum_scattered(
        &self,
        subtrees: Vec<Vec<f32>>,
        elements: &[usize],
    ) -> Result<Vec<f32>, NotSummed> {
        let sum = self.sum(subtrees)?;
        let scattered = PartTransfer::ScatteredSum {
            elements: elements.to_vec(),
        };
        // Instead of the sum of all elements.
        *self.log.lock().unwrap().last_mut().unwrap() = scattered;
        let own = self.all.bounds[self.rank] as usize..self.all.bounds[self.rank + 1] as usize;
        let before: usize = elements[..own.start].iter().sum();
        Ok(sum[before..][..elements[own].iter().sum()].to_vec())
    }

    fn gather(&self, own: Vec<f32>) -> Result<Vec<f32>, NotSummed> {
        let elements = vec![own.len()];
        let gathered = PartTransfer::Gather { elements };
        self.log.lock().unwrap().push(gathered);
        Ok(self.exchange(vec![own]).concat().concat())
    }
}

fn build(config: &ModelConfig, sample: &[usize], precision: Precision) -> Chain {
    let chain = config.build(sample, CLASSES, &SeedTree::new(7)).unwrap();
    chain.with_precision(precision).unwrap()
}

#[test]
fn layers_in_parts_compute_what_whole_layers_do() {
    for parts in [2, 3, 4, 12] {
        let whole = models(1).into_iter().zip(models(parts));
        for ((name, whole, sample), (_, divided, _)) in whole {
            let mut whole = build(&whole, &sample, Precision::F32);
            let mut divided = build(&divided, &sample, Precision::F32);
            assert_eq!((whole.parts(), divided.parts()), (1, parts));
            let names = |layout: &ronde_core::layout::StateLayout| {
                let tensors = layout.tensors.iter();
                let mut names: Vec<_> =
                    tensors.map(|t| (t.name.clone(), t.shape.clone())).collect();
                names.sort();
                names
            };
            assert_eq!(names(whole.layout()), names(&divided.layout().whole()));
            let all = 0..parts;
            let expected = pass(&mut whole, input(name, &sample), &all, false);
            let found = pass(&mut divided, input(name, &sample), &all, false);
            let close = |a: &[f32], b: &[f32]| {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-5)
            };
            assert!(
                close(&expected.outputs, &found.outputs),
                "{name} in {parts}"
            );
            for (tensor, gradient) in &expected.gradients {
                let mut whole = vec![f32::NAN; tensor.elements()];
                let of_tensor = found.gradients.iter();
                for (own, values) in of_tensor.filter(|(own, _)| own.whole_name() == tensor.name) {
                    match &own.part {
                        Some(part) => part.place(values, &mut whole),
                        None => whole.copy_from_slice(values),
                    }
                }
                assert!(
                    close(gradient, &whole),
                    "{name} in {parts}: {}",
                    tensor.name
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_who_computes_which_part() {
    for (bounds, precision, recomputes, in_halves) in [
        (vec![0, 2, 4], Precision::F32, false, false),
        (vec![0, 1, 2, 3, 4], Precision::F32, false, true),
        (vec![0, 1, 3], Precision::F32, true, false),
        (vec![0, 3, 4], Precision::Bf16, false, false),
        (vec![0, 2, 3, 6], Precision::Bf16, true, true),
        // Some parts have no token.
        (vec![0, 1, 7, 12], Precision::F32, false, false),
    ] {
        let parts = *bounds.last().unwrap();
        for (name, config, sample) in models(parts) {
            let build = || {
                let chain = build(&config, &sample, precision);
                match recomputes {
                    true => chain
                        .recomputing(&ronde_engine::Recomputation::All)
                        .unwrap(),
                    false => chain,
                }
            };
            let expected = pass(&mut build(), input(name, &sample), &(0..parts), in_halves);
            let ranks = bounds.len() - 1;
            let all = Arc::new(Threads {
                bounds: bounds.clone(),
                barrier: Barrier::new(ranks),
                given: Mutex::new(vec![Vec::new(); ranks]),
            });
            let found: Vec<Pass> = std::thread::scope(|scope| {
                let handles: Vec<_> = (0..ranks)
                    .map(|rank| {
                        let own = bounds[rank]..bounds[rank + 1];
                        let exchange = OneThread::new(&all, rank);
                        let (build, sample) = (&build, &sample);
                        scope.spawn(move || {
                            let mut chain = build();
                            let shared = exchange.clone();
                            chain.set_parts(&PartPlace::shared(own.clone(), parts, shared));
                            load_own(&mut chain, &own);
                            let found = pass(&mut chain, input(name, sample), &own, in_halves);
                            let shape = [&[3], &sample[..]].concat();
                            exchange.check(planned(&chain, shape, in_halves), name);
                            found
                        })
                    })
                    .collect();
                handles.into_iter().map(|h| h.join().unwrap()).collect()
            });
            for pass in found {
                assert_eq!(pass.outputs, expected.outputs, "{name} {bounds:?}");
                for found in pass.gradients {
                    assert!(
                        expected.gradients.contains(&found),
                        "{name}: {}",
                        found.0.name
                    );
                }
            }
        }
    }
}

/// Returns the planned exchanges of a pass in their order.
fn planned(chain: &Chain, mut shape: Vec<usize>, in_halves: bool) -> Vec<PartTransfer> {
    if in_halves {
        let all = chain.part_transfers(&shape, PassEnds::default());
        return [all.forward, all.backward, all.weights].concat();
    }
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (index, layer) in chain.layers().iter().enumerate() {
        let ends = PassEnds {
            needs_input_gradient: index > 0,
            has_output_apart: false,
        };
        let of_layer = layer.part_transfers(&shape, ends);
        forward.extend(of_layer.forward);
        backward.push([of_layer.backward, of_layer.weights].concat());
        shape = layer.cost(&shape).output_shape;
    }
    backward.reverse();
    forward.extend(backward.concat());
    forward
}

/// Loads the initial values of the tensors of some parts only.
fn load_own(chain: &mut Chain, own: &Range<u32>) {
    let tensors = chain.layout().tensors.clone();
    let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
    let mut values = vec![0.0; arena.len()];
    chain.save_state(&mut values, arena.ranges());
    let ranges = tensors.iter().zip(arena.ranges());
    let ranges = ranges.map(|(tensor, range)| match &tensor.part {
        Some(part) if !own.contains(&part.index) => {
            values[range.clone()].fill(f32::NAN);
            0..0
        }
        _ => range.clone(),
    });
    let ranges: Vec<Range<usize>> = ranges.collect();
    chain.load_shared(&(Arc::new(values) as SharedState), &ranges);
}

/// Returns the columns of a row-major matrix.
fn columns_of(values: &[f32], all: usize, own: Range<usize>) -> Vec<f32> {
    let rows = values.chunks_exact(all);
    rows.flat_map(|row| row[own.clone()].to_vec()).collect()
}

#[test]
fn the_loss_of_outputs_in_parts_is_that_of_all_outputs() {
    let (widths, classes, samples) = ([3, 4, 2, 4], 13, 4);
    let loss = CrossEntropy { classes };
    let outputs = (0..samples * 3 * classes).map(|at| (at as f32 * 0.7).sin() * 9.0);
    let outputs: Vec<f32> = outputs.collect();
    let targets = [0, 12, 5, 6, IGNORED, 7, IGNORED, IGNORED, IGNORED, 2, 3, 9];
    let predictions = Predictions::new(&outputs, &targets, samples).unwrap();
    let expected = loss.loss_and_gradient(&predictions).unwrap();
    let of = |outputs: Vec<f32>, place: &PartPlace| {
        let parts = loss.in_parts().unwrap();
        let found = parts.loss_of_parts(outputs, &widths, &targets, samples, place);
        found.unwrap()
    };
    let whole = of(outputs.clone(), &PartPlace::all(4));
    assert!((whole.loss_sum - expected.loss_sum).abs() < 1e-9);
    let each = whole.gradient.iter().zip(&expected.gradient);
    assert!(each.clone().all(|(a, b)| (a - b).abs() < 1e-6));
    let bounds = vec![0, 1, 3, 4];
    let all = Arc::new(Threads {
        bounds: bounds.clone(),
        barrier: Barrier::new(3),
        given: Mutex::new(vec![Vec::new(); 3]),
    });
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let own = bounds[rank]..bounds[rank + 1];
            let exchange = OneThread::new(&all, rank);
            let place = PartPlace::shared(own.clone(), 4, exchange.clone());
            let border = |part: u32| widths[..part as usize].iter().sum::<usize>();
            let columns = border(own.start)..border(own.end);
            let (outputs, whole, of, loss) = (&outputs, &whole, &of, &loss);
            scope.spawn(move || {
                let found = of(columns_of(outputs, classes, columns.clone()), &place);
                let planned = loss.in_parts().unwrap();
                exchange.check(planned.transfers_of_parts(12, 4), "loss");
                assert_eq!(found.loss_sum.to_bits(), whole.loss_sum.to_bits());
                assert_eq!(
                    found.gradient,
                    columns_of(&whole.gradient, classes, columns)
                );
            });
        }
    });
    let mut broken = outputs;
    broken[7] = f32::NAN;
    assert!(of(broken, &PartPlace::all(4)).loss_sum.is_nan());
}

#[test]
fn texts_are_continued_by_layers_in_parts() {
    for (name, config, sample) in models(4).into_iter().take(2) {
        let mut chain = build(&config, &sample, Precision::F32);
        let text: Vec<f32> = (0..9_u8).map(|at| f32::from(at * 5 % 24)).collect();
        let whole = Activation::from_host(&[1, 9], text.clone());
        let expected = chain.evaluate(whole).unwrap().into_host();
        let mut kept = KeptText::new();
        let mut found = Vec::new();
        for tokens in [&text[..4], &text[4..5], &text[5..]] {
            let tokens = Activation::from_host(&[1, tokens.len()], tokens.to_vec());
            let scores = chain.extend_texts(tokens, &mut [&mut kept]).unwrap();
            found.extend(scores.into_host());
        }
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let refusal = |config: &ModelConfig, classes| {
        let error = config.outline(&[8], classes).err().expect("a refusal");
        error.to_string()
    };
    let gpt = |heads, tensor_parts| ModelConfig::Gpt {
        layers: 1,
        width: 24,
        heads,
        dropout: 0.0,
        tied: false,
        tensor_parts,
    };
    let heads = refusal(&gpt(4, 3), 24);
    assert!(heads.contains("4 heads cannot be divided"), "{heads}");
    let tokens = refusal(&gpt(4, 4), 3);
    assert!(tokens.contains("3 tokens cannot be divided"), "{tokens}");
    let mlp = ModelConfig::Mlp {
        hidden: vec![3],
        tensor_parts: 4,
    };
    assert!(refusal(&mlp, 3).contains("[3] cannot be divided"));
    assert!(refusal(&gpt(4, 0), 24).contains("tensor_parts = 0"));
}
