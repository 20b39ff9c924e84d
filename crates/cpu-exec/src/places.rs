//! [`Places`]: which processors each thread of a pool may use.
//!
//! The pool only obeys the choice made here, and the system only reports the processors (`pool/affinity.rs`).
//! So the choice can be tested for machines that are not available. Invariant: a thread gets processors that
//! the process may use, and at least one.

use std::{path::Path, str::FromStr};

/// The maximum number of processors and memory nodes: more are a mistake in a list, not a machine. The
/// system's sets are as large.
const MAX_CPUS: usize = 1024;

/// The placement of threads on memory nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// The threads stay on the processors that the process was given.
    #[default]
    Given,
    /// Evenly on all nodes, each thread on the processors of its node.
    Distribute,
    /// All on the node that the process runs on.
    Isolate,
}

impl FromStr for Numa {
    type Err = PlacesError;

    fn from_str(text: &str) -> Result<Self, PlacesError> {
        match text {
            "numactl" => Ok(Self::Given),
            "distribute" => Ok(Self::Distribute),
            "isolate" => Ok(Self::Isolate),
            _ => Err(PlacesError::Numa {
                found: text.to_owned(),
            }),
        }
    }
}

/// A set of processors, by the system's numbers, in ascending order: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl FromStr for CpuList {
    type Err = PlacesError;

    fn from_str(text: &str) -> Result<Self, PlacesError> {
        let wrong = || PlacesError::List {
            found: text.chars().take(80).collect(),
        };
        let number = |part: &str| -> Option<usize> {
            let digits = part.trim();
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = is_plain.then(|| digits.parse().ok()).flatten();
            number.filter(|&number| number < MAX_CPUS)
        };
        let mut is_in = [false; MAX_CPUS];
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
            if first > last {
                return Err(wrong());
            }
            is_in[first..=last].fill(true);
        }
        Ok(Self((0..MAX_CPUS).filter(|&cpu| is_in[cpu]).collect()))
    }
}

/// The places of a pool's threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The processors to use; `None` for all that the process may use.
    pub cpus: Option<CpuList>,
    /// Whether each thread gets its own processor, as far as there are enough.
    pub is_strict: bool,
    /// The placement of threads on memory nodes.
    pub numa: Numa,
}

/// The reason why threads cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacesError {
    /// The text is not a list of processors.
    #[error("`{found}` is not a list of processors below {MAX_CPUS}; write it as `0-3` or `0-3,8`")]
    List {
        /// The text found.
        found: String,
    },
    /// The text does not name a way to place threads.
    #[error("`{found}` is not distribute, isolate or numactl")]
    Numa {
        /// The text found.
        found: String,
    },
    /// The process may not use a processor, or there is no such processor.
    #[error("processor {cpu} does not exist or is not available to this process, which may use {allowed}")]
    NotAllowed {
        /// The first such processor.
        cpu: usize,
        /// The processors that may be used.
        allowed: String,
    },
    /// The list and the node that the process runs on have no processor in common.
    #[error(
        "none of the processors to use is on the memory node on which the program runs; leave out `isolate`, or name others"
    )]
    NotOnNode,
    /// The system does not support places.
    #[error("threads cannot be placed on processors on this system; leave the choice to it")]
    Unsupported,
    /// The system returned an error.
    #[error("the processors that may be used could not be read or chosen: {reason}")]
    System {
        /// The system's error.
        reason: String,
    },
}

/// The processors that the system reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The processors that the process may use, in ascending order.
    pub allowed: Vec<usize>,
    /// The processors of each memory node.
    pub nodes: Vec<Vec<usize>>,
    /// The processor that the caller runs on.
    pub current: usize,
}

impl Machine {
    /// Reads the memory nodes below `folder`, `/sys/devices/system/node` on Linux. Missing or malformed files
    /// are left out, and processors of no node form one of their own.
    pub fn new(allowed: Vec<usize>, current: usize, folder: &Path) -> Self {
        let mut left = allowed.clone();
        let mut nodes = Vec::new();
        for node_idx in 0..MAX_CPUS {
            let Ok(text) = std::fs::read_to_string(folder.join(format!("node{node_idx}/cpulist"))) else {
                // Node numbers may have gaps; few are large.
                if node_idx > 64 {
                    break;
                }
                continue;
            };
            // A node without processors has an empty list.
            let Ok(CpuList(of_node)) = text.parse() else {
                continue;
            };
            let (own, others) = left.iter().partition(|cpu| of_node.contains(cpu));
            left = others;
            nodes.push(own);
        }
        nodes.push(left);
        nodes.retain(|node: &Vec<usize>| !node.is_empty());
        Self {
            allowed,
            nodes,
            current,
        }
    }
}

impl Places {
    /// Returns whether threads run where the system puts them.
    pub fn is_free(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the processors that may be used, node by node.
    ///
    /// # Errors
    /// Returns an error for processors that the process may not use, and if none are left.
    fn usable(&self, machine: &Machine) -> Result<Vec<Vec<usize>>, PlacesError> {
        let is_in = |list: &[usize], cpu: usize| list.binary_search(&cpu).is_ok();
        if let Some(CpuList(cpus)) = &self.cpus
            && let Some(&cpu) = cpus.iter().find(|&&cpu| !is_in(&machine.allowed, cpu))
        {
            return Err(PlacesError::NotAllowed {
                cpu,
                allowed: list_text(&machine.allowed),
            });
        }
        let is_home = |node: &Vec<usize>| self.numa != Numa::Isolate || node.contains(&machine.current);
        let nodes = machine.nodes.iter().filter(|node| is_home(node)).map(|node| {
            let usable = node.iter().copied();
            usable
                .filter(|&cpu| self.cpus.as_ref().is_none_or(|CpuList(cpus)| is_in(cpus, cpu)))
                .collect()
        });
        let nodes: Vec<Vec<usize>> = nodes.filter(|node: &Vec<usize>| !node.is_empty()).collect();
        if nodes.is_empty() {
            return Err(PlacesError::NotOnNode);
        }
        Ok(nodes)
    }

    /// Returns the number of processors that may be used.
    ///
    /// # Errors
    /// Returns the errors of [`Self::of_threads`].
    pub fn n_cpus(&self, machine: &Machine) -> Result<usize, PlacesError> {
        Ok(self.usable(machine)?.iter().map(Vec::len).sum())
    }

    /// Returns the processors that each of `n_threads` threads may use. Neighbouring threads, which share
    /// memory most, are on the same node; each node gets threads in proportion to its processors.
    ///
    /// # Errors
    /// Returns an error for processors that the process may not use, and if none are left.
    pub fn of_threads(&self, n_threads: usize, machine: &Machine) -> Result<Vec<Vec<usize>>, PlacesError> {
        let nodes = self.usable(machine)?;
        let n_cpus: usize = nodes.iter().map(Vec::len).sum();
        let all = || nodes.iter().flatten().copied().collect();
        let mut n_on_node = vec![0; nodes.len()];
        let of_thread = (0..n_threads).map(|thread_idx| {
            let mut at = thread_idx * n_cpus / n_threads;
            let mut node_idx = 0;
            while at >= nodes[node_idx].len() {
                at -= nodes[node_idx].len();
                node_idx += 1;
            }
            let node = &nodes[node_idx];
            let nth = n_on_node[node_idx];
            n_on_node[node_idx] += 1;
            if self.is_strict {
                // The first processors of a node are usually separate cores, and the rest their second
                // hardware threads.
                vec![node[nth % node.len()]]
            } else if self.numa == Numa::Distribute {
                node.clone()
            } else {
                all()
            }
        });
        Ok(of_thread.collect())
    }
}

/// Formats a list as [`CpuList`] parses it.
fn list_text(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two nodes of 16 cores; the second hardware threads are numbered after all cores, as on
    /// servers.
    fn two_nodes() -> Machine {
        let of_node = |first: usize| (first..first + 16).chain(first + 32..first + 48).collect();
        Machine {
            allowed: (0..64).collect(),
            nodes: vec![of_node(0), of_node(16)],
            current: 20,
        }
    }

    fn places(cpus: &str, is_strict: bool, numa: Numa) -> Places {
        Places {
            cpus: (!cpus.is_empty()).then(|| cpus.parse().unwrap()),
            is_strict,
            numa,
        }
    }

    #[test]
    fn lists_are_read_or_refused() {
        let check = |text: &str, expected: &str| {
            assert_eq!(
                text.parse().map(|CpuList(cpus)| list_text(&cpus)).as_deref(),
                Ok(expected)
            );
        };
        check("0", "0");
        check("0-3,8\n", "0-3,8");
        check("8, 2-4,3-5,8", "2-5,8");
        check("1023", "1023");
        for wrong in [
            "",
            ",",
            "1-",
            "-1",
            "3-1",
            "a",
            "1024",
            "0-99999999999999999999",
            "+1",
            "1--2",
            "0-3:2",
        ] {
            let error = wrong.parse::<CpuList>().unwrap_err();
            assert!(matches!(error, PlacesError::List { .. }), "{wrong}");
        }
        let long = "9".repeat(1 << 20);
        assert!(long.parse::<CpuList>().unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn threads_are_spread_over_the_nodes_in_blocks() {
        let machine = two_nodes();
        for n_threads in [8, 16, 32, 64] {
            for is_strict in [false, true] {
                let of_threads = places("", is_strict, Numa::Distribute)
                    .of_threads(n_threads, &machine)
                    .unwrap();
                for (thread_idx, cpus) in of_threads.iter().enumerate() {
                    let node = &machine.nodes[usize::from(thread_idx >= n_threads / 2)];
                    assert!(
                        cpus.iter().all(|cpu| node.contains(cpu)),
                        "{thread_idx} of {n_threads}"
                    );
                    assert_eq!(cpus.len(), if is_strict { 1 } else { 32 });
                }
                if is_strict {
                    let mut cpus: Vec<usize> = of_threads.concat();
                    cpus.sort_unstable();
                    cpus.dedup();
                    assert_eq!(cpus.len(), n_threads, "a processor each");
                    if n_threads <= 32 {
                        assert!(cpus.iter().all(|&cpu| cpu < 32), "cores of their own: {cpus:?}");
                    }
                }
            }
        }
        // If there are more threads than processors, they share them in turn.
        let few = places("0-1,16", true, Numa::Distribute)
            .of_threads(6, &machine)
            .unwrap();
        assert_eq!(few.concat(), [0, 1, 0, 1, 16, 16]);
        // Nodes of different sizes get threads in proportion.
        let few = places("0-5,16-17", true, Numa::Distribute)
            .of_threads(4, &machine)
            .unwrap();
        assert_eq!(few.concat(), [0, 1, 2, 16]);
    }

    #[test]
    fn isolated_threads_stay_on_the_node_of_the_caller() {
        let machine = two_nodes();
        let isolated = places("", false, Numa::Isolate);
        assert_eq!(isolated.n_cpus(&machine), Ok(32));
        for cpus in isolated.of_threads(8, &machine).unwrap() {
            assert_eq!(cpus, machine.nodes[1]);
        }
        let elsewhere = places("0-3", false, Numa::Isolate);
        assert_eq!(elsewhere.of_threads(2, &machine), Err(PlacesError::NotOnNode));
    }

    #[test]
    fn only_what_the_process_was_given_is_used() {
        let mut machine = two_nodes();
        machine.allowed = (4..8).collect();
        machine.nodes = vec![(4..8).collect()];
        let error = places("0-5", false, Numa::Given)
            .of_threads(2, &machine)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "processor 0 does not exist or is not available to this process, which may use 4-7"
        );
        assert_eq!(
            places("5-6", false, Numa::Given).of_threads(3, &machine).unwrap(),
            vec![vec![5, 6]; 3]
        );
        assert_eq!(
            places("", true, Numa::Given)
                .of_threads(2, &machine)
                .unwrap()
                .concat(),
            [4, 5]
        );
    }

    #[test]
    fn nodes_are_read_from_files_that_may_be_missing_or_wrong() {
        let folder = std::env::temp_dir().join(format!("tokenmill-nodes-{}", std::process::id()));
        let write = |node: &str, text: &[u8]| {
            std::fs::create_dir_all(folder.join(node)).unwrap();
            std::fs::write(folder.join(node).join("cpulist"), text).unwrap();
        };
        write("node0", b"0-1,4\n");
        write("node2", b"2-3\n");
        write("node3", b"\n");
        write("node4", b"2,\xff");
        write("node5", b"0-9");
        let machine = Machine::new((0..8).collect(), 0, &folder);
        assert_eq!(machine.nodes, [vec![0, 1, 4], vec![2, 3], vec![5, 6, 7]]);
        std::fs::remove_dir_all(&folder).unwrap();
        let machine = Machine::new(vec![3, 5], 0, &folder);
        assert_eq!(machine.nodes, [vec![3, 5]]);
    }
}
