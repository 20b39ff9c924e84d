//! What CI asks of the launches of a decode step, and the list of those that do not meet it yet.
//!
//! A product of one row has at least 40 KB of loads on their way in a multiprocessor at its best moment, attention at least 32 KB: device
//! memory needs them to give its bandwidth. No launch with fewer than 64 thread blocks at work takes longer than 4 us. The list,
//! `kernels/latency.list`, has each launch that misses one of these with its figure. Invariant: a launch that is not on it,
//! one that is worse than it says, and one that is on it without need are errors; so the list only gets shorter.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::{Context, bail};
use tokenmill_backend::KvType;
use tokenmill_cuda_exec::Launches;
use tokenmill_sim_driver::LaunchEstimate;

use super::{
    device,
    step::{Batch, Shape, Step},
    table::grid,
};

const LIST: &str = "kernels/latency.list";

/// The steps that are looked at: three layers have every mix of types that the model's have.
const STEPS: [Shape<'static>; 2] = [
    Shape {
        model: "llama-3-8b",
        recipe: "Q4_K_M",
        n_layers: Some(3),
        context: 512,
        kv_type: KvType::F16,
        adapter_rank: None,
    },
    Shape {
        model: "llama-3-8b",
        recipe: "Q8_0",
        n_layers: Some(1),
        context: 8192,
        kv_type: KvType::F16,
        adapter_rank: None,
    },
];
const DEVICE: &str = "h200";

const PRODUCT_KB: f64 = 40.0;
const ATTENTION_KB: f64 = 32.0;
const FEW_BLOCKS: u64 = 64;
const MAX_US: f64 = 4.0;
/// What a figure may differ by before it counts as worse: another path of the compiler through the same source.
const SLACK: f64 = 0.02;

/// A demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Demand {
    /// Kilobytes in flight; more is better.
    InFlight,
    /// Microseconds of a launch with few thread blocks; less is better.
    FewBlocks,
}

impl Demand {
    const ALL: [Self; 2] = [Self::InFlight, Self::FewBlocks];

    fn name(self) -> &'static str {
        match self {
            Self::InFlight => "kb_in_flight",
            Self::FewBlocks => "us_with_few_blocks",
        }
    }

    fn is_worse(self, found: f64, listed: f64) -> bool {
        match self {
            Self::InFlight => found < listed * (1.0 - SLACK),
            Self::FewBlocks => found > listed * (1.0 + SLACK),
        }
    }
}

/// Which demand a launch misses: with the step and the launch.
type Missed = BTreeMap<(String, String, Demand), f64>;

/// Demands that a launch misses, with its figures.
fn missed(launch: &LaunchEstimate) -> Vec<(Demand, f64)> {
    let estimate = &launch.estimate;
    let needed_kb = if launch.kernel.starts_with("matvec") {
        PRODUCT_KB
    } else if launch.module.starts_with("attention") {
        ATTENTION_KB
    } else {
        0.0
    };
    let in_flight_kb = estimate.in_flight_peak / 1024.0;
    let mut missed = Vec::new();
    if in_flight_kb < needed_kb {
        missed.push((Demand::InFlight, in_flight_kb));
    }
    if estimate.working_blocks < FEW_BLOCKS && estimate.us > MAX_US {
        missed.push((Demand::FewBlocks, estimate.us));
    }
    missed
}

fn find() -> anyhow::Result<Missed> {
    let mut all = Missed::new();
    for shape in &STEPS {
        let name = format!("{}/{}/{}", shape.model, shape.recipe, shape.context);
        // One after the other: a launch that begins early has had a part of its loads before.
        let steps = Step::estimate(
            shape,
            &[Batch::Decode { n_seqs: 1 }],
            device(DEVICE)?,
            Launches::InOrder,
        )?;
        for launch in steps.iter().flat_map(|step| &step.launches) {
            let place = format!("{}/{}/{}", launch.module, launch.kernel, grid(launch));
            for (demand, figure) in missed(launch) {
                let worst = all.entry((name.clone(), place.clone(), demand)).or_insert(figure);
                if demand.is_worse(figure, *worst) {
                    *worst = figure;
                }
            }
        }
    }
    Ok(all)
}

fn parse(text: &str) -> anyhow::Result<Missed> {
    let mut list = Missed::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let wrong = || format!("{LIST}: `{line}` is not step, launch, demand and figure");
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[step, launch, demand, figure] = words.as_slice() else {
            bail!(wrong());
        };
        let demand = Demand::ALL.into_iter().find(|known| known.name() == demand);
        let key = (step.to_owned(), launch.to_owned(), demand.with_context(wrong)?);
        list.insert(key, figure.parse().with_context(wrong)?);
    }
    Ok(list)
}

/// What is wrong with the list, a line each.
fn differences(found: &Missed, listed: &Missed) -> Vec<String> {
    let mut lines = Vec::new();
    for ((step, launch, demand), figure) in found {
        let name = demand.name();
        match listed.get(&(step.clone(), launch.clone(), *demand)) {
            None => lines.push(format!("{step}: {launch} has {name} {figure:.1}, which is new")),
            Some(&old) if demand.is_worse(*figure, old) => {
                lines.push(format!(
                    "{step}: {launch} has {name} {figure:.1}, worse than {old:.1}"
                ));
            }
            Some(_) => {}
        }
    }
    for (step, launch, demand) in listed.keys() {
        if !found.contains_key(&(step.clone(), launch.clone(), *demand)) {
            let name = demand.name();
            lines.push(format!(
                "{step}: {launch} meets {name} now and must go from the list"
            ));
        }
    }
    lines
}

/// Compares the launches with the list.
///
/// # Errors
/// Each launch that misses a demand and is not listed or worse than listed, and each that is listed without need.
pub(super) fn check() -> anyhow::Result<()> {
    let path = crate::workspace_root().join(LIST);
    let listed = parse(&fs::read_to_string(path).with_context(|| format!("cannot read {LIST}"))?)?;
    let found = find()?;
    let lines = differences(&found, &listed);
    if !lines.is_empty() {
        bail!(
            "{}\n`cargo xtask kernel-estimate --update` writes {LIST} again",
            lines.join("\n")
        );
    }
    println!("{} launches miss a demand, as {LIST} says", found.len());
    Ok(())
}

/// Writes the list.
///
/// # Errors
/// Where it cannot be written.
pub(super) fn update() -> anyhow::Result<()> {
    let mut text = String::from(
        "# Written by `cargo xtask kernel-estimate --update`; CI compares. Launches of decode steps that miss a demand, as estimated for an\n\
         # h200: a product of one row has 40 KB of loads in flight in a multiprocessor, attention 32 KB; fewer than 64 thread blocks take 4 us.\n\
         # STEP LAUNCH DEMAND FIGURE\n",
    );
    let found = find()?;
    for ((step, launch, demand), figure) in &found {
        let _ = writeln!(text, "{step} {launch} {} {figure:.1}", demand.name());
    }
    fs::write(crate::workspace_root().join(LIST), text).with_context(|| format!("cannot write {LIST}"))?;
    println!("{LIST}: {} launches", found.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "# words\ns a/b/1x32 us_with_few_blocks 9.0\ns c/d/8x32 kb_in_flight 20.0\n";

    #[track_caller]
    fn check(found: &str, expected: &[&str]) {
        let found = parse(found).unwrap();
        assert_eq!(differences(&found, &parse(KNOWN).unwrap()), expected);
    }

    #[test]
    fn a_list_only_gets_shorter() {
        check(KNOWN, &[]);
        check(
            "s a/b/1x32 us_with_few_blocks 8.0\ns c/d/8x32 kb_in_flight 30.0\n",
            &[],
        );
        check(
            "s a/b/1x32 us_with_few_blocks 9.3\ns c/d/8x32 kb_in_flight 19.0\n",
            &[
                "s: a/b/1x32 has us_with_few_blocks 9.3, worse than 9.0",
                "s: c/d/8x32 has kb_in_flight 19.0, worse than 20.0",
            ],
        );
        check(
            "s a/b/1x32 us_with_few_blocks 9.0\ns e/f/8x32 kb_in_flight 20.0\n",
            &[
                "s: e/f/8x32 has kb_in_flight 20.0, which is new",
                "s: c/d/8x32 meets kb_in_flight now and must go from the list",
            ],
        );
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        for line in ["a b c", "s l kb_in_flight many", "s l speed 1.0"] {
            assert!(parse(line).unwrap_err().to_string().contains(line));
        }
    }
}
