//! [`Record`]: the measurements in `bench/runs`.
//!
//! A record grows: a run replaces the cells that it measured and keeps the others, since all of them take longer than a
//! machine stays quiet. So each figure has its own commit, date and limits. Invariant: samples are stored as measured;
//! derived figures can be computed again.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{roofline::Cost, steps::StepFigure};
use crate::measure::{
    record::{self, Machine},
    rounds::Spread,
};

/// The file in a record's folder.
const FILE: &str = "speed.json";

/// The figures of a machine.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) machine: Machine,
    /// By the names of cells.
    pub(super) figures: BTreeMap<String, Figure>,
}

/// The result of one cell.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    /// `tokens/s` or `s`.
    pub(super) unit: String,
    /// The state of the sources.
    pub(super) commit: String,
    /// UTC.
    pub(super) measured_at: String,
    pub(super) ours: SideFigure,
    /// Each configuration of the peer that was tried. The fastest has the most samples.
    pub(super) peers: Vec<SideFigure>,
    /// How much faster than the peer's best.
    pub(super) ratio: Option<f64>,
    /// The minimal cost of a token.
    pub(super) cost: Option<Cost>,
    /// Share of the machine's limits that single steps of ours reach; the limits are sampled around them.
    pub(super) steps: Option<StepFigure>,
}

/// The result of one side.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SideFigure {
    pub(super) name: String,
    /// Its command line, without folders.
    pub(super) command: String,
    /// In the order they were taken.
    pub(super) samples: Vec<f64>,
    pub(super) spread: Spread,
    pub(super) peak_memory_bytes: Option<u64>,
}

impl Figure {
    /// Returns whether less is better.
    pub(super) fn is_time(&self) -> bool {
        self.unit == "s"
    }

    /// Returns the peer's fastest configuration.
    pub(super) fn best_peer(&self) -> Option<&SideFigure> {
        self.peers.iter().max_by(|a, b| {
            let (a, b) = (speed(a, self.is_time()), speed(b, self.is_time()));
            a.total_cmp(&b)
        })
    }

    /// Returns how much faster ours is than the peer's fastest.
    pub(super) fn speedup(&self) -> Option<f64> {
        let peer = self.best_peer()?;
        Some(speed(&self.ours, self.is_time()) / speed(peer, self.is_time()))
    }
}

/// Returns a number that is larger for the faster side.
fn speed(side: &SideFigure, is_time: bool) -> f64 {
    if is_time {
        side.spread.median.recip()
    } else {
        side.spread.median
    }
}

impl Record {
    /// Reads the record of a folder, or begins one.
    ///
    /// # Errors
    /// A file that is not a record.
    pub(super) fn load(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        if path.exists() {
            record::read(&path)
        } else {
            Ok(Self::default())
        }
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(super) fn save(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let (path, partial) = (folder.join(FILE), folder.join(format!("{FILE}.partial")));
        record::write(&partial, self)?;
        fs::rename(&partial, &path)?;
        Ok(path)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bench) fn side(name: &str, samples: &[f64]) -> SideFigure {
        SideFigure {
            name: name.to_owned(),
            command: format!("{name} bench"),
            samples: samples.to_vec(),
            spread: Spread::of(samples).unwrap(),
            peak_memory_bytes: Some(900 << 20),
        }
    }

    pub(in crate::bench) const COST: Cost = Cost {
        bytes: 1e9,
        multiplies: 1e9,
        slots: None,
    };

    pub(in crate::bench) fn step_figure(share: f64) -> StepFigure {
        let spread = |value| Spread::of(&[value]).unwrap();
        StepFigure {
            share: spread(share),
            mix_share: None,
            tokens_s: spread(30.0),
            read_bytes_s: spread(3e10),
            multiplies_s: spread(4e11),
        }
    }

    pub(in crate::bench) fn figure(unit: &str, ours: f64, peers: &[f64]) -> Figure {
        let mut figure = Figure {
            unit: unit.to_owned(),
            commit: "abc".to_owned(),
            measured_at: "2026-01-01".to_owned(),
            ours: side("tokenmill", &[ours]),
            peers: peers.iter().map(|&peer| side("peer", &[peer])).collect(),
            ratio: None,
            cost: None,
            steps: None,
        };
        figure.ratio = figure.speedup();
        figure
    }

    #[test]
    fn the_peer_is_taken_at_its_best() {
        assert_eq!(figure("tokens/s", 30.0, &[10.0, 15.0]).ratio, Some(2.0));
        assert_eq!(figure("s", 0.5, &[2.0, 1.0]).ratio, Some(2.0));
        assert_eq!(figure("s", 0.5, &[]).ratio, None);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(folder.path()).unwrap(), Record::default());
        let mut record = Record::default();
        record.figures.insert("a/b".to_owned(), figure("s", 1.0, &[2.0]));
        let path = record.save(folder.path()).unwrap();
        assert_eq!(Record::load(folder.path()).unwrap(), record);
        fs::write(path, "{").unwrap();
        assert!(Record::load(folder.path()).is_err());
    }
}
