//! [`SharedPlan`]: which rows of a decode step begin with the same pages, and how attention over those is cut.
//!
//! Separate from the step's inputs because it is arithmetic on page tables. Invariants: a row is in one group at most; what a group shares ends
//! before the page that any of its rows stores to; all that a captured step depends on is in [`SharedShape`].

use tokenmill_backend::{ForwardBatch, PAGE_TOKENS};

/// Rows and pages of a group at least.
const MIN_ROWS: usize = 4;
const MIN_PAGES: usize = 8;
/// Reads of tokens that a group, and a step, saves at least. A step pays two launches more a layer, which by the timing model are the reads of
/// some thousand tokens of an 8B.
const MIN_SAVED_BY_GROUP: usize = 2048;
const MIN_SAVED: usize = 8192;
/// Items that the pages are cut into: with 8 KV heads, all that an H200 has at once.
const WANTED_ITEMS: usize = 32;
/// Rows that count as one item of work: a tile of query heads in groups of four.
const ITEM_ROWS: usize = 16;
/// A stage of the kernel is two pages.
const STAGE_PAGES: usize = 2;
/// Items at most.
pub(super) const MAX_ITEMS: usize = 128;

/// Counts of a plan, rounded up so that few graphs serve all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedShape {
    /// Items.
    pub(super) n_items: usize,
    /// Rows of the largest group.
    pub(super) longest: usize,
    /// Records of a row at most.
    pub(super) n_records: usize,
    /// Pages behind the shared ones, of the row that has most.
    pub(super) max_rest_pages: usize,
}

/// Groups of rows, as `attention_shared.cu` takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedPlan {
    /// First row in `rows`, rows, first page in the tables, pages, record.
    pub(super) items: Vec<[u32; crate::SharedPages::ITEM_WORDS]>,
    /// Rows of the groups, one group after the other.
    pub(super) rows: Vec<u32>,
    /// Tokens that each row of the step shares; 0 for those in no group.
    pub(super) tokens: Vec<u32>,
    /// Records that are of those.
    pub(super) n_records: Vec<u32>,
}

/// Rows `first..=last` of an order begin with as many equal pages.
#[derive(Clone, Copy)]
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
    /// Plans a step of one token a row, whose page table reaches as far as its context: table `row` is
    /// `pages[starts[row]..starts[row + 1]]`. `None` where too little is shared.
    pub(super) fn of(pages: &[u32], starts: &[u32]) -> Option<Self> {
        let table = |row: usize| &pages[starts[row] as usize..starts[row + 1] as usize];
        // The last page has the token's own position.
        let whole = |row: usize| {
            let table = table(row);
            &table[..table.len().saturating_sub(1)]
        };
        let n_rows = starts.len().saturating_sub(1);
        let mut order: Vec<usize> = (0..n_rows).filter(|&row| whole(row).len() >= MIN_PAGES).collect();
        order.sort_unstable_by(|&a, &b| whole(a).cmp(whole(b)).then(a.cmp(&b)));
        let equal: Vec<usize> = (order.windows(2))
            .map(|pair| n_equal(whole(pair[0]), whole(pair[1])))
            .collect();
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

    /// Its counts, rounded up. `round` is how contexts are padded, in pages.
    pub(super) fn shape(&self, starts: &[u32], round: impl Fn(usize) -> usize) -> SharedShape {
        let longest = self.items.iter().map(|item| item[1]).max().unwrap_or(1);
        let n_records = self.n_records.iter().max().copied().unwrap_or(1);
        let rest =
            |row: usize| (starts[row + 1] - starts[row]) as usize - self.tokens[row] as usize / PAGE_TOKENS;
        SharedShape {
            n_items: self.items.len().next_power_of_two(),
            longest: longest.next_power_of_two() as usize,
            n_records: n_records.next_power_of_two() as usize,
            max_rest_pages: round((0..self.tokens.len()).map(rest).max().unwrap_or(1)),
        }
    }
}

fn n_equal(a: &[u32], b: &[u32]) -> usize {
    // A page that fell out of a window is no page.
    let is_shared = |(a, b): &(&u32, &u32)| a == b && **a != ForwardBatch::UNMAPPED_PAGE;
    a.iter().zip(b).take_while(is_shared).count()
}

/// The group of rows in `first..end` that saves most, then those before and behind it. `equal[i]` is how many pages rows i and i + 1 share.
fn find_groups(equal: &[usize], first: usize, end: usize, groups: &mut Vec<Group>) {
    let mut best: Option<Group> = None;
    for begin in first..end {
        let mut n_pages = usize::MAX;
        for last in begin + 1..end {
            n_pages = n_pages.min(equal[last - 1]);
            if n_pages < MIN_PAGES {
                break;
            }
            let group = Group {
                first: begin,
                last,
                n_pages: n_pages / STAGE_PAGES * STAGE_PAGES,
            };
            if group.n_rows() >= MIN_ROWS && best.is_none_or(|best| group.n_saved() > best.n_saved()) {
                best = Some(group);
            }
        }
    }
    if let Some(best) = best.filter(|best| best.n_saved() >= MIN_SAVED_BY_GROUP) {
        find_groups(equal, first, best.first, groups);
        groups.push(best);
        find_groups(equal, best.last + 1, end, groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            n_items: 16,
            longest: 32,
            n_records: 16,
            max_rest_pages: 301,
        };
        assert_eq!(plan.shape(&starts, |pages| pages), expected);
    }

    #[test]
    fn little_is_not_shared() {
        // Few rows, short prefixes, and little together.
        assert_eq!(plan(&[(0, 1000, 2); 3]), None);
        assert_eq!(plan(&[(0, 7, 2); 500]), None);
        assert_eq!(plan(&[(0, 32, 2); 16]), None);
        assert!(plan(&[(0, 32, 2); 17]).is_some());
        assert_eq!(plan(&[]), None);
        assert_eq!(plan(&[(0, 0, 1); 64]), None);
        // Pages that are gone are not shared.
        let gone = vec![ForwardBatch::UNMAPPED_PAGE; 64 * 65];
        let starts: Vec<u32> = (0..=64).map(|row| row * 65).collect();
        assert_eq!(SharedPlan::of(&gone, &starts), None);
    }

    #[test]
    fn the_page_that_a_row_stores_to_is_its_own() {
        // Equal to the last page: the last is never shared, and an odd page is not a stage.
        let found = plan(&[(0, 64, 0); 32]).unwrap();
        assert_eq!(found.tokens[0], 62 * 16);
        // The shortest row decides, or is left out where the others save more.
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
        assert_eq!(plan.shape(&starts, |pages| pages).longest, 32);
    }
}
