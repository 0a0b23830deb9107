//! Measures every algorithm of every operation over connections, alternating, and reports whether the group
//! chooses well: for each size the fastest, the chosen one and the ratio of their times.
//!
//! `choice_grid [ranks=4] [hosts=0,0,1,1] [at=-,-,ns1:10.0.0.1,ns2:10.0.0.2] [sizes=8,65536]
//! [operations=all_reduce,exact_sum,reduce,broadcast] [rounds=5] [calibration=MILLISECONDS] [csv]`; ranks are
//! processes, `at` assigns each to a network namespace and an address.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ronde_comm::{
    AlgorithmChoice, Calibration, GroupConfig, ProcessGroup, Security, TransportChoice, bind,
};
use ronde_core::exact::ExactSum;
use ronde_core::{Buffer, Collectives, CollectivesExt, DType, GroupRank, Operation, ReduceOp};
use ronde_schedule::{Algorithm, Hosts};

type ExampleResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Logical shards of the exact sum.
const SHARDS: usize = 8;
/// Number of short operations that are measured together.
const BATCH: usize = 8;
/// Size from which one operation is a batch, in bytes.
const LONG_BYTES: usize = 256 << 10;

#[expect(clippy::disallowed_methods, reason = "a measurement owns its clock")]
fn now() -> Instant {
    Instant::now()
}

/// The parameters of a measurement.
#[derive(Debug, Clone)]
struct GridPlan {
    ranks: usize,
    hosts: Vec<usize>,
    at: Vec<(String, IpAddr)>,
    sizes: Vec<usize>,
    operations: Vec<String>,
    rounds: usize,
    calibration: Calibration,
    csv: bool,
}

impl GridPlan {
    fn of(words: &[String]) -> ExampleResult<Self> {
        let found = |name: &str| {
            let value = |word: &String| word.strip_prefix(&format!("{name}=")).map(str::to_owned);
            words.iter().find_map(value)
        };
        let list = |text: String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let ranks: usize = found("ranks").map_or(Ok(4), |text| text.parse())?;
        let hosts = match found("hosts") {
            Some(text) => list(text)
                .iter()
                .map(|host| host.parse())
                .collect::<Result<_, _>>()?,
            None => vec![0; ranks],
        };
        let sizes = match found("sizes") {
            Some(text) => list(text)
                .iter()
                .map(|size| size.parse())
                .collect::<Result<_, _>>()?,
            None => (3..=26)
                .step_by(3)
                .map(|e| 1 << e)
                .chain([1 << 26])
                .collect(),
        };
        let mut at = vec![(String::new(), IpAddr::V4(Ipv4Addr::LOCALHOST)); ranks];
        for (place, word) in found("at")
            .map(list)
            .unwrap_or_default()
            .into_iter()
            .enumerate()
        {
            if let Some((namespace, address)) = word.split_once(':') {
                at[place] = (namespace.to_owned(), address.parse()?);
            }
        }
        let operations = found("operations").map_or_else(
            || {
                ["all_reduce", "exact_sum", "reduce", "broadcast"]
                    .map(str::to_owned)
                    .to_vec()
            },
            list,
        );
        let rounds = found("rounds").map_or(Ok(5), |text| text.parse())?;
        let calibration = found("calibration").map(|text| text.parse().map(Duration::from_millis));
        let calibration = calibration.transpose()?.map(Calibration::Within);
        let csv = words.iter().any(|word| word == "csv");
        Ok(Self {
            ranks,
            hosts,
            at,
            sizes,
            operations,
            rounds,
            calibration: calibration.unwrap_or_default(),
            csv,
        })
    }
}

/// Returns a value of an operand: a whole number, so that sums in any order are exact.
fn value(operand: usize, place: usize) -> f32 {
    let mixed = (place as u32 ^ (operand as u32) << 24).wrapping_mul(2_654_435_761);
    (mixed >> 21) as f32
}

fn operand(number: usize, len: usize) -> impl Iterator<Item = f32> {
    (0..len).map(move |place| value(number, place))
}

/// One operation of the grid.
struct GridMeasurement {
    name: String,
    sum: ExactSum,
    size: usize,
}

impl GridMeasurement {
    fn new(name: &str, size: usize) -> ExampleResult<Self> {
        let bounds = (0..=size)
            .map(|rank| (rank * SHARDS / size) as u32)
            .collect();
        let sum = ExactSum::new(bounds).ok_or("no shard for some rank")?;
        Ok(Self {
            name: name.to_owned(),
            sum,
            size,
        })
    }

    fn operation(&self, turn: usize) -> ExampleResult<Operation> {
        let (op, root) = (ReduceOp::Sum, GroupRank((turn % self.size) as u32));
        Ok(match self.name.as_str() {
            "all_reduce" => Operation::AllReduce(op),
            "exact_sum" => Operation::ExactSum(self.sum.clone()),
            "reduce" => Operation::Reduce { op, root },
            "broadcast" => Operation::Broadcast { root },
            other => return Err(format!("no such operation: {other}").into()),
        })
    }

    /// Returns the numbers of the operands of a rank.
    fn brought(&self, rank: usize) -> std::ops::Range<usize> {
        if self.name != "exact_sum" {
            return rank..rank + 1;
        }
        let count = |rank: usize| self.sum.nodes(GroupRank(rank as u32)).len();
        let start = (0..rank).map(count).sum();
        start..start + count(rank)
    }

    fn input(&self, rank: usize, len: usize) -> Buffer {
        let operands = self.brought(rank).flat_map(|number| operand(number, len));
        Buffer::copy_of(&operands.collect::<Vec<_>>())
    }

    /// Checks a result: all of a short one, samples of a long one.
    fn check(&self, result: &Buffer, rank: usize, len: usize, turn: usize) -> ExampleResult<()> {
        let root = turn % self.size;
        if self.name == "reduce" && rank != root {
            return Ok(());
        }
        let last = self.brought(self.size - 1).end;
        let operands = if self.name == "broadcast" {
            root..root + 1
        } else {
            0..last
        };
        let values = result.as_slice::<f32>();
        if values.len() != len {
            return Err(format!("{}: {} elements of {len}", self.name, values.len()).into());
        }
        for place in (0..len).step_by(1 + len / 100_000) {
            let expected: f32 = operands.clone().map(|number| value(number, place)).sum();
            if values[place] != expected {
                let got = values[place];
                return Err(format!("{}: {got} for {expected} at {place}", self.name).into());
            }
        }
        Ok(())
    }
}

/// One member: the group that chooses, and one group for each algorithm.
struct GridMember {
    group: ProcessGroup,
    forced: Vec<(Algorithm, ProcessGroup)>,
    plan: GridPlan,
}

impl GridMember {
    /// Prints its address, reads the addresses of all, joins.
    fn join(plan: GridPlan, rank: usize) -> ExampleResult<Self> {
        let (listener, at) = bind(plan.at[rank].1)?;
        writeln!(io::stdout(), "{at}")?;
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        let peers: Result<Vec<SocketAddr>, _> = line.split_whitespace().map(str::parse).collect();
        let mut config = GroupConfig::new("grid", "grid", GroupRank(rank as u32));
        config.transport = TransportChoice::Tcp;
        config.security = Security::Plain;
        config.hosts = Some(Hosts::new(&plan.hosts));
        config.calibration = plan.calibration;
        let start = now();
        let group = ProcessGroup::connect(config, listener, &peers?)?;
        if rank == 0 && plan.csv {
            let (time, costs) = (start.elapsed(), group.cost_model());
            writeln!(io::stderr(), "joined in {time:?}: {costs:?}")?;
        }
        let mut forced = Vec::new();
        for algorithm in Algorithm::ALL {
            let made = group.split_with(Some(0), 0, |config| config.algorithm = Some(algorithm))?;
            forced.push((algorithm, made.ok_or("no group")?));
        }
        Ok(Self {
            group,
            forced,
            plan,
        })
    }

    /// Returns the seconds of one operation by one algorithm, on the slowest rank.
    fn time(
        &self,
        measured: &GridMeasurement,
        group: &ProcessGroup,
        len: usize,
        check: bool,
    ) -> ExampleResult<f64> {
        let rank = group.rank().index();
        let input = measured.input(rank, len);
        let count = if 4 * len < LONG_BYTES { BATCH } else { 1 };
        let mut buffers: Vec<_> = (0..count)
            .map(|_| Buffer::copy_of(input.as_slice::<f32>()))
            .collect();
        group.barrier()?;
        let start = now();
        for (turn, buffer) in buffers.iter_mut().enumerate() {
            let brought = std::mem::replace(buffer, Buffer::host(DType::F32, 0));
            *buffer = group.run(measured.operation(turn)?, brought)?;
        }
        let mut elapsed = [start.elapsed().as_secs_f64() / count as f64];
        self.group.all_reduce(&mut elapsed, ReduceOp::Max)?;
        if check {
            for (turn, buffer) in buffers.iter().enumerate() {
                measured.check(buffer, rank, len, turn)?;
            }
        }
        Ok(elapsed[0])
    }

    /// Measures all algorithms of one operation and size, alternating; rank 0 prints a line for each.
    fn cell(&self, measured: &GridMeasurement, bytes: usize) -> ExampleResult<()> {
        let (len, operation) = ((bytes / 4).max(1), measured.operation(0)?);
        let able = |(algorithm, group): &&(Algorithm, ProcessGroup)| {
            group.choice(&operation, DType::F32, len).algorithm == Some(*algorithm)
        };
        let able: Vec<_> = self.forced.iter().filter(able).collect();
        let mut times = vec![Vec::new(); able.len()];
        let more = if bytes < LONG_BYTES { 3 } else { 1 };
        for round in 0..=more * self.plan.rounds {
            for ((_, group), times) in able.iter().zip(&mut times) {
                let time = self.time(measured, group, len, round == 0)?;
                if round > 0 {
                    times.push(time);
                }
            }
        }
        let choice = self.group.choice(&operation, DType::F32, len);
        for ((algorithm, group), mut times) in able.iter().zip(times) {
            times.sort_by(f64::total_cmp);
            let line = GridLine {
                operation: measured.name.clone(),
                bytes,
                algorithm: algorithm.name().to_owned(),
                micros: times[times.len() / 2] * 1e6,
                predicted: predicted(&group.choice(&operation, DType::F32, len)),
                chosen: choice.algorithm == Some(*algorithm),
                reason: choice.reason.clone(),
            };
            if self.group.rank().index() == 0 {
                writeln!(io::stdout(), "{}", line.encode())?;
            }
        }
        Ok(())
    }

    fn work(&self) -> ExampleResult<()> {
        for name in &self.plan.operations {
            let measured = GridMeasurement::new(name, self.plan.ranks)?;
            for &bytes in &self.plan.sizes {
                self.cell(&measured, bytes)?;
            }
        }
        Ok(())
    }
}

fn predicted(choice: &AlgorithmChoice) -> f64 {
    choice
        .predicted
        .map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}

/// The result of one algorithm in one cell.
struct GridLine {
    operation: String,
    bytes: usize,
    algorithm: String,
    micros: f64,
    predicted: f64,
    chosen: bool,
    reason: String,
}

impl GridLine {
    fn encode(&self) -> String {
        let Self {
            operation,
            bytes,
            algorithm,
            micros,
            predicted,
            chosen,
            reason,
        } = self;
        format!(
            "{operation}\t{bytes}\t{algorithm}\t{micros:.2}\t{predicted:.2}\t{chosen}\t{reason}"
        )
    }

    fn decode(text: &str) -> ExampleResult<Self> {
        let words: Vec<&str> = text.split('\t').collect();
        let [
            operation,
            bytes,
            algorithm,
            micros,
            predicted,
            chosen,
            reason,
        ] = words[..]
        else {
            return Err(format!("invalid output of rank 0: {text:?}").into());
        };
        Ok(Self {
            operation: operation.to_owned(),
            bytes: bytes.parse()?,
            algorithm: algorithm.to_owned(),
            micros: micros.parse()?,
            predicted: predicted.parse()?,
            chosen: chosen.parse()?,
            reason: reason.to_owned(),
        })
    }
}

/// Starts the members, connects them through this process, and returns the lines of rank 0.
fn run(plan: &GridPlan, words: &[String]) -> ExampleResult<Vec<GridLine>> {
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = Vec::new();
    for (rank, (namespace, _)) in plan.at.iter().enumerate() {
        let mut command = Command::new(&program);
        if !namespace.is_empty() {
            command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(&program);
        }
        command.arg(format!("rank={rank}")).args(words);
        children.push(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?,
        );
    }
    let mut outputs = Vec::new();
    let mut addresses = String::new();
    for child in &mut children {
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        output.read_line(&mut addresses)?;
        outputs.push(output);
    }
    let line = addresses.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    for child in &mut children {
        child
            .stdin
            .take()
            .ok_or("no input")?
            .write_all(line.as_bytes())?;
    }
    let mut lines = Vec::new();
    for line in outputs.remove(0).lines() {
        let line = line?;
        if plan.csv {
            writeln!(io::stdout(), "{line}")?;
        }
        lines.push(GridLine::decode(&line)?);
    }
    for (rank, mut child) in children.into_iter().enumerate() {
        if !child.wait()?.success() {
            return Err(format!("rank {rank} failed").into());
        }
    }
    Ok(lines)
}

fn report(lines: &[GridLine]) -> ExampleResult<()> {
    let mut cells: BTreeMap<(&str, usize), Vec<&GridLine>> = BTreeMap::new();
    for line in lines {
        cells
            .entry((&line.operation, line.bytes))
            .or_default()
            .push(line);
    }
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let out = &mut io::stdout();
    writeln!(
        out,
        "| operation | bytes | best | us | chosen | us | ratio | all |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    for ((operation, bytes), cell) in cells {
        let best = cell
            .iter()
            .min_by(|a, b| a.micros.total_cmp(&b.micros))
            .ok_or("empty")?;
        let chosen = cell
            .iter()
            .find(|line| line.chosen)
            .ok_or("nothing was chosen")?;
        let ratio = chosen.micros / best.micros;
        ratios.entry(operation).or_default().push(ratio);
        let told = |line: &&GridLine| {
            let GridLine {
                algorithm,
                micros,
                predicted,
                ..
            } = line;
            format!("{algorithm} {micros:.0} ({predicted:.0})")
        };
        let all = cell.iter().map(told).collect::<Vec<_>>().join(", ");
        writeln!(
            out,
            "| {operation} | {bytes} | {} | {:.0} | {} | {:.0} | {ratio:.2} | {all} |",
            best.algorithm, best.micros, chosen.algorithm, chosen.micros
        )?;
        if ratio > 1.1 {
            writeln!(out, "<!-- {} -->", chosen.reason)?;
        }
    }
    for (operation, mut ratios) in ratios {
        ratios.sort_by(f64::total_cmp);
        let (count, most) = (ratios.len(), ratios[ratios.len() - 1]);
        let near = ratios.iter().filter(|ratio| **ratio <= 1.1).count();
        let median = ratios[count / 2];
        writeln!(
            out,
            "{operation}: median {median:.2}, most {most:.2}, {near} of {count} within 10 %"
        )?;
    }
    Ok(())
}

fn main() -> ExampleResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let plan = GridPlan::of(&words)?;
    match words.iter().find_map(|word| word.strip_prefix("rank=")) {
        Some(rank) => GridMember::join(plan, rank.parse()?)?.work(),
        None => report(&run(&plan, &words)?),
    }
}
