//! Demands of CI on the launches of a decode step, and the list of launches that miss them.
//!
//! A product of one row has at least 40 KB of loads on their way in a multiprocessor at its best moment, attention at least 32 KB: device
//! memory needs them to give its bandwidth. No launch with fewer than 64 thread blocks at work takes longer than 4 us. Asked of dense models of 8B and 1B and
//! of one with experts, by one row and by 16, launched early and in order. The list, `kernels/latency.list`, has each launch that misses one of
//! these with its figure and the reason. Invariant: a launch that is not on it, one that is worse than it says, one without a reason,
//! and one that is on it without need are errors; so the list only gets shorter.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::{Context, bail};
use tokenmill_cuda_exec::Launches;
use tokenmill_sim_driver::LaunchEstimate;

use super::{
    device,
    step::{Batch, Shape, Step},
    table::grid,
};

const LIST: &str = "kernels/latency.list";

/// A model and the steps of it that are looked at.
struct Looked {
    shape: Shape<'static>,
    rows: &'static [usize],
}

const fn looked(
    model: &'static str,
    recipe: &'static str,
    n_layers: u32,
    context: usize,
    rows: &'static [usize],
) -> Looked {
    Looked {
        shape: Shape {
            n_layers: Some(n_layers),
            ..Shape::of(model, recipe, context)
        },
        rows,
    }
}

/// Three layers of the 8B have every mix of types that all have.
const LOOKED: [Looked; 4] = [
    looked("llama-3-8b", "Q4_K_M", 3, 512, &[1, 16]),
    looked("llama-3-8b", "Q8_0", 1, 8192, &[1]),
    looked("llama-3.2-1b", "Q4_K_M", 2, 512, &[1, 16]),
    looked("qwen3-30b-a3b-8l", "Q4_K_M", 2, 512, &[1, 16]),
];
/// How launches follow each other, with the name that the list has for it.
const ORDERS: [(Launches, &str); 2] = [(Launches::InOrder, "in-order"), (Launches::Early, "early")];
const DEVICE: &str = "h200";

const PRODUCT_KB: f64 = 40.0;
const ATTENTION_KB: f64 = 32.0;
const FEW_BLOCKS: u64 = 64;
const MAX_US: f64 = 4.0;
/// Relative difference below which a figure does not count as worse: the compiler may take another path through the same source.
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
type Key = (String, String, Demand);
type Missed = BTreeMap<Key, f64>;
/// The entries of the list: figures and reasons.
type Listed = BTreeMap<Key, (f64, String)>;

/// Stands for a reason that is still to be written.
const NO_REASON: &str = "?";

/// Demands that a launch of a step by so many rows misses, with its figures.
fn missed(launch: &LaunchEstimate, n_rows: usize) -> Vec<(Demand, f64)> {
    let estimate = &launch.estimate;
    let is_product = launch.kernel.starts_with("matvec") || launch.module.starts_with("experts");
    let needed_kb = if is_product && n_rows == 1 {
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
    for Looked { shape, rows } in &LOOKED {
        let batches: Vec<Batch> = rows.iter().map(|&n_seqs| Batch::Decode { n_seqs }).collect();
        for (launches, order) in ORDERS {
            let steps = Step::estimate(shape, &batches, device(DEVICE)?, launches)?;
            for step in &steps {
                let n_rows = step.batch.n_tokens();
                let Shape {
                    model,
                    recipe,
                    context,
                    ..
                } = shape;
                let name = format!("{model}/{recipe}/{context}/{n_rows}/{order}");
                for launch in &step.launches {
                    let place = format!("{}/{}/{}", launch.module, launch.kernel, grid(launch));
                    for (demand, figure) in missed(launch, n_rows) {
                        let worst = all.entry((name.clone(), place.clone(), demand)).or_insert(figure);
                        if demand.is_worse(figure, *worst) {
                            *worst = figure;
                        }
                    }
                }
            }
        }
    }
    Ok(all)
}

fn parse(text: &str) -> anyhow::Result<Listed> {
    let mut list = Listed::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let wrong = || format!("{LIST}: `{line}` is not step, launch, demand, figure and reason");
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let &[step, launch, demand, figure, reason] = words.as_slice() else {
            bail!(wrong());
        };
        let demand = Demand::ALL.into_iter().find(|known| known.name() == demand);
        let key = (step.to_owned(), launch.to_owned(), demand.with_context(wrong)?);
        let figure = figure.parse().with_context(wrong)?;
        list.insert(key, (figure, reason.to_owned()));
    }
    Ok(list)
}

/// Returns the errors of the list, a line each.
fn differences(found: &Missed, listed: &Listed) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, figure) in found {
        let (step, launch, demand) = key;
        let name = demand.name();
        match listed.get(key) {
            None => lines.push(format!("{step}: {launch} has {name} {figure:.1}, which is new")),
            Some(&(old, _)) if demand.is_worse(*figure, old) => {
                lines.push(format!(
                    "{step}: {launch} has {name} {figure:.1}, worse than {old:.1}"
                ));
            }
            Some((_, reason)) if reason == NO_REASON => {
                lines.push(format!("{step}: {launch} misses {name} without a reason"));
            }
            Some(_) => {}
        }
    }
    for key in listed.keys().filter(|key| !found.contains_key(key)) {
        let (step, launch, demand) = key;
        let name = demand.name();
        lines.push(format!(
            "{step}: {launch} meets {name} now and must go from the list"
        ));
    }
    lines
}

fn read() -> anyhow::Result<Listed> {
    let path = crate::workspace_root().join(LIST);
    parse(&fs::read_to_string(path).with_context(|| format!("cannot read {LIST}"))?)
}

/// Compares the launches with the list.
///
/// # Errors
/// Each launch that misses a demand and is not listed, or worse than listed, or listed without a reason; and each that is listed without need.
pub(super) fn check() -> anyhow::Result<()> {
    let listed = read()?;
    let found = find()?;
    let lines = differences(&found, &listed);
    if !lines.is_empty() {
        bail!(
            "{}\n`cargo lab kernel-estimate --update` writes {LIST} again",
            lines.join("\n")
        );
    }
    println!("{} launches miss a demand, as {LIST} says", found.len());
    Ok(())
}

/// Writes the list: reasons stay, and what is new has `?` in place of one, which [`check`] refuses.
///
/// # Errors
/// Where the list cannot be read or written.
pub(super) fn update() -> anyhow::Result<()> {
    let mut text = String::from(
        "# Figures are written by `cargo lab kernel-estimate --update`, reasons by hand; CI compares. Launches of decode steps that miss a demand, as\n\
         # estimated for an h200: a product of one row has 40 KB of loads in flight in a multiprocessor, attention 32 KB; fewer than 64 thread blocks\n\
         # take 4 us. A step is a model, a type, a context, rows, and how launches follow each other.\n\
         # STEP LAUNCH DEMAND FIGURE REASON\n",
    );
    let listed = read()?;
    let found = find()?;
    for (key, figure) in &found {
        let (step, launch, demand) = key;
        let reason = listed.get(key).map_or(NO_REASON, |(_, reason)| reason);
        let _ = writeln!(text, "{step} {launch} {} {figure:.1} {reason}", demand.name());
    }
    fs::write(crate::workspace_root().join(LIST), text).with_context(|| format!("cannot write {LIST}"))?;
    println!("{LIST}: {} launches", found.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str =
        "# words\ns a/b/1x32 us_with_few_blocks 9.0 one row\ns c/d/8x32 kb_in_flight 20.0 a chain of loads\n";

    #[track_caller]
    fn check(found: &str, expected: &[&str]) {
        let found = parse(found).unwrap();
        let found = (found.into_iter())
            .map(|(key, (figure, _))| (key, figure))
            .collect();
        assert_eq!(differences(&found, &parse(KNOWN).unwrap()), expected);
    }

    #[test]
    fn a_list_only_gets_shorter() {
        check(KNOWN, &[]);
        check(
            "s a/b/1x32 us_with_few_blocks 8.0 -\ns c/d/8x32 kb_in_flight 30.0 -\n",
            &[],
        );
        check(
            "s a/b/1x32 us_with_few_blocks 9.3 -\ns c/d/8x32 kb_in_flight 19.0 -\n",
            &[
                "s: a/b/1x32 has us_with_few_blocks 9.3, worse than 9.0",
                "s: c/d/8x32 has kb_in_flight 19.0, worse than 20.0",
            ],
        );
        check(
            "s a/b/1x32 us_with_few_blocks 9.0 -\ns e/f/8x32 kb_in_flight 20.0 -\n",
            &[
                "s: e/f/8x32 has kb_in_flight 20.0, which is new",
                "s: c/d/8x32 meets kb_in_flight now and must go from the list",
            ],
        );
    }

    #[test]
    fn a_figure_needs_a_reason() {
        let listed = parse("s a/b/1x32 us_with_few_blocks 9.0 ?").unwrap();
        let found = (listed.iter())
            .map(|(key, (figure, _))| (key.clone(), *figure))
            .collect();
        assert_eq!(
            differences(&found, &listed),
            ["s: a/b/1x32 misses us_with_few_blocks without a reason"]
        );
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        for line in [
            "a b c",
            "s l kb_in_flight 1.0",
            "s l kb_in_flight many -",
            "s l speed 1.0 -",
        ] {
            assert!(parse(line).unwrap_err().to_string().contains(line));
        }
    }
}
