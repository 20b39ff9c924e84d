//! [`room_for`]: the loaded models to unload so that another fits into the budget.
//!
//! It is arithmetic on a list: no clock, no state, no wait. Invariants: a pinned model never goes, and no
//! model goes without need; of the others, the least recently used go first.

/// A model that takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Its number.
    pub(crate) idx: usize,
    /// The memory that it takes.
    pub(crate) n_bytes: u64,
    /// Whether it stays whatever happens.
    pub(crate) is_pinned: bool,
    /// Whether requests run on it.
    pub(crate) is_busy: bool,
    /// Grows with each use.
    pub(crate) used: u64,
}

/// How there can be room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is.
    Enough,
    /// There is once these are unloaded, on which nothing runs.
    Unload(Vec<usize>),
    /// There is once these are unloaded, and requests run on some of them.
    AfterRequests(Vec<usize>),
    /// There never is: all models that are not pinned take less than the missing memory.
    Never {
        /// The memory that the pinned models take.
        pinned_bytes: u64,
    },
}

/// How `needed_bytes` can fit into a budget next to the loaded models.
pub(crate) fn room_for(needed_bytes: u64, budget_bytes: u64, residents: &[Resident]) -> Room {
    let sum = |residents: &mut dyn Iterator<Item = &Resident>| {
        residents.fold(0u64, |sum, resident| sum.saturating_add(resident.n_bytes))
    };
    let missing = sum(&mut residents.iter())
        .saturating_add(needed_bytes)
        .saturating_sub(budget_bytes);
    if missing == 0 {
        return Room::Enough;
    }
    let pinned_bytes = sum(&mut residents.iter().filter(|resident| resident.is_pinned));
    if pinned_bytes.saturating_add(needed_bytes) > budget_bytes {
        return Room::Never { pinned_bytes };
    }
    let mut candidates: Vec<&Resident> = residents.iter().filter(|resident| !resident.is_pinned).collect();
    candidates.sort_by_key(|resident| (resident.is_busy, resident.used, resident.idx));
    let mut freed = 0u64;
    let mut gone = Vec::new();
    for resident in candidates {
        if freed >= missing {
            break;
        }
        freed = freed.saturating_add(resident.n_bytes);
        gone.push(resident);
    }
    // A model chosen early may turn out unneeded once a larger one is added. The newest stay if they can.
    for place in (0..gone.len()).rev() {
        let without = freed - gone[place].n_bytes;
        if without >= missing {
            freed = without;
            gone.remove(place);
        }
    }
    let is_busy = gone.iter().any(|resident| resident.is_busy);
    let numbers = gone.into_iter().map(|resident| resident.idx).collect();
    if is_busy {
        Room::AfterRequests(numbers)
    } else {
        Room::Unload(numbers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resident(idx: usize, n_bytes: u64, used: u64) -> Resident {
        Resident {
            idx,
            n_bytes,
            is_pinned: false,
            is_busy: false,
            used,
        }
    }

    #[test]
    fn the_one_used_longest_ago_goes_first() {
        let residents = [resident(0, 4, 9), resident(1, 4, 3), resident(2, 4, 5)];
        assert_eq!(room_for(4, 16, &residents), Room::Enough);
        assert_eq!(room_for(4, 12, &residents), Room::Unload(vec![1]));
        assert_eq!(room_for(8, 12, &residents), Room::Unload(vec![1, 2]));
        assert_eq!(room_for(13, 12, &residents), Room::Never { pinned_bytes: 0 });
    }

    #[test]
    fn idle_ones_go_before_busy_ones_and_pinned_ones_stay() {
        let mut residents = [resident(0, 4, 1), resident(1, 4, 2), resident(2, 4, 3)];
        residents[0].is_busy = true;
        assert_eq!(room_for(4, 12, &residents), Room::Unload(vec![1]));
        assert_eq!(room_for(12, 12, &residents), Room::AfterRequests(vec![1, 2, 0]));
        residents[1].is_pinned = true;
        assert_eq!(room_for(4, 12, &residents), Room::Unload(vec![2]));
        assert_eq!(room_for(9, 12, &residents), Room::Never { pinned_bytes: 4 });
    }

    #[test]
    fn a_small_one_stays_where_a_large_one_must_go_anyway() {
        let residents = [resident(0, 1, 1), resident(1, 8, 2)];
        assert_eq!(room_for(8, 9, &residents), Room::Unload(vec![1]));
    }

    fn residents() -> impl Strategy<Value = Vec<Resident>> {
        let one = (0u64..20, any::<bool>(), any::<bool>(), 0u64..8);
        proptest::collection::vec(one, 0..8).prop_map(|all| {
            (all.into_iter().enumerate())
                .map(|(idx, (n_bytes, is_pinned, is_busy, used))| Resident {
                    idx,
                    n_bytes,
                    is_pinned,
                    is_busy,
                    used,
                })
                .collect()
        })
    }

    /// Whether there is room once `gone` are.
    fn fits(needed: u64, budget: u64, residents: &[Resident], gone: &[usize]) -> bool {
        let stays = residents.iter().filter(|resident| !gone.contains(&resident.idx));
        stays.map(|resident| resident.n_bytes).sum::<u64>() + needed <= budget
    }

    proptest! {
        #[test]
        fn room_is_made_with_as_little_as_can_be(
            needed in 0u64..40,
            budget in 0u64..80,
            residents in residents(),
        ) {
            let of = |keep: &dyn Fn(&Resident) -> bool| -> Vec<usize> {
                residents.iter().filter(|resident| keep(resident)).map(|resident| resident.idx).collect()
            };
            let may_go = of(&|resident| !resident.is_pinned);
            let idle = of(&|resident| !resident.is_pinned && !resident.is_busy);
            match room_for(needed, budget, &residents) {
                Room::Enough => prop_assert!(fits(needed, budget, &residents, &[])),
                Room::Never { .. } => prop_assert!(!fits(needed, budget, &residents, &may_go)),
                Room::Unload(gone) => {
                    prop_assert!(gone.iter().all(|idx| idle.contains(idx)));
                    check_gone(needed, budget, &residents, &gone)?;
                }
                Room::AfterRequests(gone) => {
                    prop_assert!(gone.iter().all(|idx| may_go.contains(idx)));
                    prop_assert!(!fits(needed, budget, &residents, &idle));
                    check_gone(needed, budget, &residents, &gone)?;
                }
            }
        }
    }

    /// There is room without these, and not with any one of them; and none stays in their place that was used longer ago and
    /// would have been enough.
    fn check_gone(
        needed: u64,
        budget: u64,
        residents: &[Resident],
        gone: &[usize],
    ) -> Result<(), TestCaseError> {
        prop_assert!(!gone.is_empty());
        prop_assert!(fits(needed, budget, residents, gone));
        for place in 0..gone.len() {
            let mut fewer = gone.to_vec();
            fewer.remove(place);
            prop_assert!(!fits(needed, budget, residents, &fewer));
        }
        if let [only] = gone {
            let only = residents[*only];
            for other in residents {
                if !other.is_pinned && other.is_busy == only.is_busy && other.used < only.used {
                    prop_assert!(!fits(needed, budget, residents, &[other.idx]));
                }
            }
        }
        Ok(())
    }
}
