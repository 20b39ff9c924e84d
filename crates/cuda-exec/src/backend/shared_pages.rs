//! [`SharedPlan`]: which rows of a decode step begin with the same pages, and how attention over these pages is divided into items.
//!
//! This is arithmetic on page tables. Invariants: a row is in at most one group; the pages that a group shares end before the page that any of
//! its rows stores to; everything that a captured step depends on is in [`SharedShape`].

use std::cmp::Reverse;

use tokenmill_backend::{ForwardBatch, PAGE_TOKENS, StepShape};

/// Smallest number of rows and pages of a group.
const MIN_ROWS: usize = 4;
const MIN_PAGES: usize = 8;
/// Smallest number of token reads that a group, and a step, must save. A step pays for two more launches a layer, which by the timing model
/// cost as much as reading some thousand tokens of an 8B model.
const MIN_SAVED_BY_GROUP: usize = 2048;
const MIN_SAVED: usize = 8192;
/// Number of items that the pages are divided into: with 8 KV heads, as many thread blocks as an H200 runs at once.
const WANTED_ITEMS: usize = 32;
/// Number of rows that count as one item of work: a tile of query heads in groups of four.
const ITEM_ROWS: usize = 16;
/// A stage of the kernel is two pages.
const STAGE_PAGES: usize = 2;
/// Largest number of items.
pub(super) const MAX_ITEMS: usize = 128;

/// Smallest counts in a shape: items, records, and pages after the shared ones. Padding to them costs next to nothing.
const LEAST_ITEMS: usize = WANTED_ITEMS;
const LEAST_RECORDS: usize = 8;
const LEAST_REST_PAGES: usize = 16;

/// Holds the counts of a plan, rounded up so that few graphs serve all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedShape {
    /// Items.
    pub(super) n_items: usize,
    /// Number of rows of the largest group.
    pub(super) longest: usize,
    /// Largest number of records of a row.
    pub(super) n_records: usize,
    /// Largest number of pages after the shared ones, over all rows.
    pub(super) max_rest_pages: usize,
}

/// Groups of rows, as `attention_shared.cu` takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedPlan {
    /// First row in `rows`, rows, first page in the tables, pages, record.
    pub(super) items: Vec<[u32; crate::SharedPages::ITEM_WORDS]>,
    /// Rows of the groups, one group after the other.
    pub(super) rows: Vec<u32>,
    /// Number of tokens that each row of the step shares; 0 for rows in no group.
    pub(super) tokens: Vec<u32>,
    /// Number of records for the shared tokens.
    pub(super) n_records: Vec<u32>,
}

/// Describes rows `first..=last` of an order, which begin with the same number of equal pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    first: usize,
    last: usize,
    n_pages: usize,
}

impl Group {
    fn n_rows(self) -> usize {
        self.last - self.first + 1
    }

    fn n_saved(self) -> usize {
        (self.n_rows() - 1) * self.n_pages * PAGE_TOKENS
    }
}

impl SharedPlan {
    /// Plans a step of one token a row, whose page table reaches as far as its context: table `row` is `pages[starts[row]..starts[row + 1]]`.
    /// Returns `None` if too little is shared.
    pub(super) fn of(pages: &[u32], starts: &[u32]) -> Option<Self> {
        let table = |row: usize| &pages[starts[row] as usize..starts[row + 1] as usize];
        // The last page has the token's own position.
        let whole = |row: usize| {
            let table = table(row);
            &table[..table.len().saturating_sub(1)]
        };
        let n_rows = starts.len().saturating_sub(1);
        let mut order: Vec<usize> = (0..n_rows).filter(|&row| whole(row).len() >= MIN_PAGES).collect();
        let equal = sort(&mut order, whole);
        let mut groups = Vec::new();
        find_groups(&equal, 0, order.len(), &mut groups);
        if groups.iter().map(|group| group.n_saved()).sum::<usize>() < MIN_SAVED {
            return None;
        }
        let work = (groups.iter())
            .map(|group| group.n_pages * group.n_rows().div_ceil(ITEM_ROWS))
            .sum::<usize>();
        let item_pages = work.div_ceil(WANTED_ITEMS).max(MIN_PAGES);
        let item_pages = item_pages.next_multiple_of(STAGE_PAGES);
        let mut plan = Self {
            tokens: vec![0; n_rows],
            n_records: vec![0; n_rows],
            ..Self::default()
        };
        for group in groups {
            let n_records = group.n_pages.div_ceil(item_pages);
            if plan.items.len() + n_records > MAX_ITEMS {
                continue;
            }
            let first_row = plan.rows.len();
            let rows = &order[group.first..=group.last];
            for (record, page) in (0..group.n_pages).step_by(item_pages).enumerate() {
                plan.items.push([
                    first_row as u32,
                    rows.len() as u32,
                    starts[rows[0]] + page as u32,
                    item_pages.min(group.n_pages - page) as u32,
                    record as u32,
                ]);
            }
            for &row in rows {
                plan.rows.push(row as u32);
                plan.tokens[row] = (group.n_pages * PAGE_TOKENS) as u32;
                plan.n_records[row] = n_records as u32;
            }
        }
        (!plan.items.is_empty()).then_some(plan)
    }

    /// Returns the plan's counts, rounded up so coarsely that a step's padded shape has few variants.
    pub(super) fn shape(&self, starts: &[u32], step: &StepShape) -> SharedShape {
        let longest = self.items.iter().map(|item| item[1]).max().unwrap_or(1) as usize;
        let n_records = self.n_records.iter().max().copied().unwrap_or(1) as usize;
        let rest =
            |row: usize| (starts[row + 1] - starts[row]) as usize - self.tokens[row] as usize / PAGE_TOKENS;
        let max_rest_pages = (0..self.tokens.len()).map(rest).max().unwrap_or(1);
        SharedShape {
            n_items: next_power_of_four(LEAST_ITEMS, self.items.len()),
            longest: next_power_of_four(MIN_ROWS, longest).min(step.n_tokens),
            // Records take room in the scratch memory.
            n_records: n_records.next_power_of_two().max(LEAST_RECORDS),
            max_rest_pages: next_power_of_four(LEAST_REST_PAGES, max_rest_pages).min(step.max_pages),
        }
    }
}

/// Returns the smallest of `least`, 4 `least`, 16 `least` and so on that is at least `n`.
fn next_power_of_four(least: usize, n: usize) -> usize {
    let mut power = least;
    while power < n {
        power *= 4;
    }
    power
}

/// Sorts rows by their tables, rows with equal tables by their numbers, and returns how many pages each row shares with the next.
///
/// A page is compared with one other page, by blocks, however many rows there are: rows separate where their tables differ, and the pages
/// before that point are not looked at again. Equal pages at one position say nothing about earlier pages: two sequences may compute the same
/// tokens at once, and a third one may begin with pages of both.
fn sort<'a>(order: &mut [usize], table: impl Fn(usize) -> &'a [u32]) -> Vec<usize> {
    let mut equal = vec![0; order.len().saturating_sub(1)];
    // Rows of a run share `depth` pages; the pages from `gone` on are absent.
    let mut runs = vec![(0..order.len(), 0, usize::MAX)];
    while let Some((run, depth, gone)) = runs.pop() {
        if run.len() < 2 {
            continue;
        }
        let mut common = &table(order[run.start])[depth..];
        for &row in &order[run.start + 1..run.end] {
            common = &common[..n_equal(common, &table(row)[depth..])];
        }
        // A page that left the window is absent.
        let is_gone = |&page: &u32| page == ForwardBatch::UNMAPPED_PAGE;
        let gone = gone.min((common.iter().position(is_gone)).map_or(usize::MAX, |place| depth + place));
        let depth = depth + common.len();
        let next = |row: usize| table(row).get(depth);
        order[run.clone()].sort_unstable_by_key(|&row| (next(row), row));
        let mut start = run.start;
        while start < run.end {
            let page = next(order[start]);
            let rows = order[start..run.end].iter();
            let end = start + rows.take_while(|&&row| next(row) == page).count();
            if page.is_none() {
                // Tables that end here are equal.
                equal[start..end - 1].fill(depth.min(gone));
            } else {
                runs.push((start..end, depth, gone));
            }
            if end < run.end {
                equal[end - 1] = depth.min(gone);
            }
            start = end;
        }
    }
    equal
}

/// Returns the length of the longest common prefix of two lists.
fn n_equal(a: &[u32], b: &[u32]) -> usize {
    const BLOCK: usize = 256;
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    // Whole blocks are compared as memory.
    let blocks = a.chunks(BLOCK).zip(b.chunks(BLOCK));
    let start = (BLOCK * blocks.take_while(|(a, b)| a == b).count()).min(len);
    let rest = a[start..].iter().zip(&b[start..]);
    start + rest.take_while(|(a, b)| a == b).count()
}

/// Finds the group of rows in `first..end` that saves most, then the groups before and after it. `equal[i]`
/// is the number of pages that rows i and i + 1 share.
fn find_groups(equal: &[usize], first: usize, end: usize, groups: &mut Vec<Group>) {
    let best = best_group(equal, first, end);
    if let Some(best) = best.filter(|best| best.n_saved() >= MIN_SAVED_BY_GROUP) {
        find_groups(equal, first, best.first, groups);
        groups.push(best);
        find_groups(equal, best.last + 1, end, groups);
    }
}

/// Returns the group of rows in `first..end` that saves most; among equals the first, then the shortest. The algorithm is that of the largest
/// rectangle under a histogram: a stack holds the open groups, each with more pages than the one below it.
fn best_group(equal: &[usize], first: usize, end: usize) -> Option<Group> {
    let rank = |group: &Group| (group.n_saved(), Reverse(group.first), Reverse(group.last));
    let mut best: Option<Group> = None;
    let mut begun: Vec<(usize, usize)> = Vec::new();
    // The number of pages that each row shares with the next one.
    let with_next = equal
        .iter()
        .copied()
        .skip(first)
        .take((end - first).saturating_sub(1));
    for (row, n_pages) in (first..end).zip(with_next.chain([0])) {
        let n_pages = if n_pages < MIN_PAGES {
            0
        } else {
            n_pages / STAGE_PAGES * STAGE_PAGES
        };
        let mut begin = row;
        while let Some((first, n_pages)) = begun.pop_if(|(_, of_it)| *of_it >= n_pages) {
            begin = first;
            let group = Group {
                first,
                last: row,
                n_pages,
            };
            if group.n_rows() >= MIN_ROWS && best.is_none_or(|best| rank(&group) > rank(&best)) {
                best = Some(group);
            }
        }
        if n_pages > 0 {
            begun.push((begin, n_pages));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use tokenmill_backend::{Phase, SamplingMode};

    use super::{super::step::bucket, *};

    /// Tables of rows that begin with pages `from..from + n` and have `rest` pages of their own.
    fn plan(rows: &[(u32, u32, u32)]) -> Option<SharedPlan> {
        let (pages, starts) = tables(rows);
        SharedPlan::of(&pages, &starts)
    }

    fn tables(rows: &[(u32, u32, u32)]) -> (Vec<u32>, Vec<u32>) {
        let (mut pages, mut starts) = (Vec::new(), vec![0]);
        for (row, &(from, n, rest)) in rows.iter().enumerate() {
            pages.extend(from..from + n);
            let own = 100_000 + 1000 * row as u32;
            pages.extend(own..own + rest);
            starts.push(pages.len() as u32);
        }
        (pages, starts)
    }

    /// Returns a decode step padded to `n_tokens` tokens, and to contexts of `max_pages` pages.
    fn step(n_tokens: usize, max_pages: usize) -> StepShape {
        StepShape {
            n_tokens,
            n_seqs: n_tokens,
            n_outputs: n_tokens,
            n_logits: n_tokens,
            n_hidden: 0,
            max_pages,
            longest: 1,
            phase: Phase::Decode,
            sampling: SamplingMode::Argmax,
        }
    }

    /// Computes the groups by their definition: compares every row and page, and tries every run of rows.
    fn naive_groups(tables: &[&[u32]]) -> (Vec<usize>, Vec<Group>) {
        fn find(equal: &[usize], first: usize, end: usize, groups: &mut Vec<Group>) {
            let mut best: Option<Group> = None;
            for begin in first..end {
                for last in begin + 1..end {
                    let n_pages = equal[begin..last].iter().copied().min().unwrap();
                    let group = Group {
                        first: begin,
                        last,
                        n_pages: n_pages / STAGE_PAGES * STAGE_PAGES,
                    };
                    let is_group = n_pages >= MIN_PAGES && group.n_rows() >= MIN_ROWS;
                    if is_group && best.is_none_or(|best| group.n_saved() > best.n_saved()) {
                        best = Some(group);
                    }
                }
            }
            if let Some(best) = best.filter(|best| best.n_saved() >= MIN_SAVED_BY_GROUP) {
                find(equal, first, best.first, groups);
                groups.push(best);
                find(equal, best.last + 1, end, groups);
            }
        }
        let mut order: Vec<usize> = (0..tables.len()).collect();
        order.sort_by_key(|&row| (tables[row], row));
        let is_shared = |(a, b): &(&u32, &u32)| a == b && **a != ForwardBatch::UNMAPPED_PAGE;
        let equal: Vec<usize> = (order.windows(2))
            .map(|pair| {
                let pages = tables[pair[0]].iter().zip(tables[pair[1]]);
                pages.take_while(is_shared).count()
            })
            .collect();
        let mut groups = Vec::new();
        find(&equal, 0, order.len(), &mut groups);
        (order, groups)
    }

    #[test]
    fn groups_are_those_that_comparing_all_finds_in_the_same_order() {
        let mut state = 7_u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut n_found = [0; 3];
        for _ in 0..300 {
            let n_rows = below(40);
            let mut tables: Vec<Vec<u32>> = Vec::new();
            for row in 0..n_rows {
                // Most rows begin like an earlier row.
                let mut table = match (row > 0).then(|| &tables[below(row)]) {
                    Some(other) if below(4) > 0 => other[..below(other.len() + 1)].to_vec(),
                    _ => Vec::new(),
                };
                for _ in 0..below(400) {
                    let place = table.len();
                    table.push(match below(300) {
                        0 => ForwardBatch::UNMAPPED_PAGE,
                        1 => below(3) as u32,
                        // Equal pages after unequal ones.
                        _ => (row % 5 * 1000 + place) as u32,
                    });
                }
                tables.push(table);
            }
            let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
            let (expected_order, expected) = naive_groups(&tables);
            let mut order: Vec<usize> = (0..n_rows).collect();
            let equal = sort(&mut order, |row| tables[row]);
            assert_eq!(order, expected_order);
            let mut found = Vec::new();
            find_groups(&equal, 0, n_rows, &mut found);
            assert_eq!(found, expected);
            n_found[found.len().min(2)] += 1;
        }
        assert!(n_found.iter().all(|&n| n > 10), "{n_found:?}");
    }

    #[test]
    fn a_decode_bucket_has_a_handful_of_shapes() {
        // Prompts of 512 to 4,096 common tokens, each alone, and contexts of 1k to 16k.
        for n_common in [32, 64, 100, 128, 256] {
            let mut shapes = HashMap::<_, HashSet<SharedShape>>::new();
            for n_rows in (4..=64).step_by(3) {
                let contexts = (64..=1024).step_by(60).filter(|&n_pages| n_pages > n_common);
                for n_pages in contexts {
                    let (pages, starts) = tables(&vec![(0, n_common, n_pages - n_common); n_rows]);
                    let step = step(bucket(n_rows), n_pages.next_power_of_two() as usize);
                    if let Some(plan) = SharedPlan::of(&pages, &starts) {
                        let of_bucket = shapes.entry((step.n_tokens, step.max_pages)).or_default();
                        of_bucket.insert(plan.shape(&starts, &step));
                    }
                }
            }
            let most = shapes.values().map(HashSet::len).max().unwrap_or(0);
            let n_all: usize = shapes.values().map(HashSet::len).sum();
            assert!((1..=4).contains(&most), "{most} with {n_common} common pages");
            assert!(n_all <= 2 * shapes.len(), "{n_all} in {} buckets", shapes.len());
        }
    }

    #[test]
    fn rows_with_equal_pages_are_a_group_and_others_are_not() {
        let mut rows = vec![(0, 256, 3); 32];
        rows.insert(5, (5000, 300, 1));
        let plan = plan(&rows).unwrap();
        // 256 pages of 32 rows are 512 tiles of pages: items of 16.
        assert_eq!(plan.items.len(), 16);
        assert_eq!(plan.items[0], [0, 32, 0, 16, 0]);
        assert_eq!(plan.items[15], [0, 32, 240, 16, 15]);
        assert_eq!(plan.rows.len(), 32);
        assert!(!plan.rows.contains(&5));
        assert_eq!((plan.tokens[4], plan.tokens[5]), (4096, 0));
        assert_eq!((plan.n_records[4], plan.n_records[5]), (16, 0));
        let (_, starts) = tables(&rows);
        let expected = SharedShape {
            n_items: 32,
            longest: 40,
            n_records: 16,
            max_rest_pages: 512,
        };
        assert_eq!(plan.shape(&starts, &step(40, 512)), expected);
    }

    #[test]
    fn little_is_not_shared() {
        // Few rows, short prefixes, and little in total.
        assert_eq!(plan(&[(0, 1000, 2); 3]), None);
        assert_eq!(plan(&[(0, 7, 2); 500]), None);
        assert_eq!(plan(&[(0, 32, 2); 16]), None);
        assert!(plan(&[(0, 32, 2); 17]).is_some());
        assert_eq!(plan(&[]), None);
        assert_eq!(plan(&[(0, 0, 1); 64]), None);
        // Absent pages are not shared.
        let gone = vec![ForwardBatch::UNMAPPED_PAGE; 64 * 65];
        let starts: Vec<u32> = (0..=64).map(|row| row * 65).collect();
        assert_eq!(SharedPlan::of(&gone, &starts), None);
    }

    #[test]
    fn the_page_that_a_row_stores_to_is_its_own() {
        // Equal up to the last page: the last page is never shared, and a single page does not fill a stage.
        let found = plan(&[(0, 64, 0); 32]).unwrap();
        assert_eq!(found.tokens[0], 62 * 16);
        // The shortest row limits the group, or is excluded if the others save more without it.
        let mut rows = vec![(0, 64, 1); 32];
        rows.push((0, 10, 0));
        let found = plan(&rows).unwrap();
        assert_eq!((found.tokens[0], found.tokens[32]), (64 * 16, 0));
    }

    #[test]
    fn several_prompts_are_several_groups() {
        let mut rows = vec![(0, 64, 1); 20];
        rows.extend([(1000, 101, 2); 10]);
        rows.reverse();
        let plan = plan(&rows).unwrap();
        let (_, starts) = tables(&rows);
        let of = |tokens: u32| plan.tokens.iter().filter(|&&found| found == tokens).count();
        assert_eq!((of(1024), of(1600)), (20, 10));
        // Every page of a group is in one item.
        for row in 0..rows.len() {
            let place = plan.rows.iter().position(|&found| found == row as u32).unwrap() as u32;
            let items = plan
                .items
                .iter()
                .filter(|item| (item[0]..item[0] + item[1]).contains(&place));
            let (mut next, mut n_records) = (None, 0);
            for item in items {
                assert!(next.is_none_or(|next| next == item[2]));
                assert!(item[3].is_multiple_of(2));
                assert_eq!(item[4], n_records);
                next = Some(item[2] + item[3]);
                n_records += 1;
            }
            let first = plan
                .items
                .iter()
                .find(|item| item[0] <= place && place < item[0] + item[1]);
            assert_eq!(next.unwrap() - first.unwrap()[2], plan.tokens[row] / 16);
            assert_eq!(n_records, plan.n_records[row]);
        }
        assert_eq!(plan.shape(&starts, &step(32, 128)).longest, 32);
    }
}
