//! The maps and counters on the medium, against what the walk has claimed.

use super::queue::on_threads;
use super::report::{Audit, Progress, Stage, Totals, Watch};
use super::walk::Walked;
use crate::check::claims::Claims;
use crate::check::finding::{FINDINGS_MAX, Finding, Fix, Problem};
use crate::image::{Image, Source};
use crate::layout::{
    EPOCH_MAX, Geometry, LINES_PER_PAGE, PAGE, REGION_PAGES, WORDS_PER_PAGE, page_at, state,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Note pages that are claimed both whole and by lines: while the walk runs nobody sees both.
pub(super) fn find_mixed(walked: &mut Walked) {
    let geometry = *walked.claims.geometry();
    for region in (0..geometry.regions()).filter(|&r| walked.claims.any_in(r)) {
        for first in words(&geometry, region) {
            let mut both = walked.claims.whole_pages(first) & walked.claims.line_pages(first);
            while both != 0 {
                walked
                    .suspects
                    .page(first + u64::from(both.trailing_zeros()));
                both &= both - 1;
            }
        }
    }
}

/// The first pages of all words of page bits of a region, those behind its end included.
pub(crate) fn words(geometry: &Geometry, region: u64) -> impl Iterator<Item = u64> + use<> {
    let start = geometry.region_start(region);
    (start..start + REGION_PAGES).step_by(64)
}

/// The bits of the 64 pages from `first` on that lie in `range`.
pub(crate) fn mask(range: &Range<u64>, first: u64) -> u64 {
    let below = |page: u64| match page.saturating_sub(first) {
        n if n >= 64 => u64::MAX,
        n => (1 << n) - 1,
    };
    below(range.end) & !below(range.start)
}

/// The pages of a word of page bits whose bits are set in `bits`.
pub(crate) fn pages_of(first: u64, mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let page = first + u64::from(bits.trailing_zeros());
        (bits != 0).then(|| {
            bits &= bits - 1;
            page
        })
    })
}

/// What one thread found in the maps.
#[derive(Default)]
struct Part {
    findings: Vec<Finding>,
    more: u64,
    totals: Totals,
}

impl Part {
    #[cold]
    fn report(&mut self, problem: Problem, at: u64, detail: String, fix: Fix) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings
                .push(Finding::new(problem, 0, at, detail).fix(fix));
        } else {
            self.more += 1;
        }
    }
}

/// Compare all maps and counters; completes the audit.
pub(super) fn compare<S: Source>(
    image: &Image<'_, S>,
    walked: Walked,
    threads: usize,
    progress: Watch<'_>,
) -> Audit {
    let clean = image.pool.load(state::CLEAN_EPOCH) == image.pool.load(state::EPOCH);
    let regions = image.geometry.regions();
    let next = AtomicU64::new(0);
    let work = || {
        let mut part = Part::default();
        loop {
            let region = next.fetch_add(1, Relaxed);
            if region >= regions {
                return part;
            }
            compare_region(image, &walked.claims, region, clean, &mut part);
            progress(Progress {
                stage: Stage::Maps,
                done: region + 1,
                total: regions,
            });
        }
    };
    let parts = on_threads(threads.min(regions as usize), work);
    let Walked {
        claims,
        suspects,
        findings,
        more,
        totals,
    } = walked;
    let contested = suspects.pages;
    let mut audit = Audit {
        clean,
        findings,
        more,
        totals,
        claims,
        contested,
    };
    let mut whole = Part::default();
    for part in parts {
        whole.findings.extend(part.findings);
        whole.more += part.more;
        whole.totals.pages += part.totals.pages;
        whole.totals.lines += part.totals.lines;
        whole.totals.free_lines += part.totals.free_lines;
        whole.totals.leaked_pages += part.totals.leaked_pages;
        whole.totals.leaked_lines += part.totals.leaked_lines;
    }
    audit.totals.pages = whole.totals.pages;
    audit.totals.lines = whole.totals.lines;
    audit.totals.free_lines = whole.totals.free_lines;
    audit.totals.leaked_pages = whole.totals.leaked_pages;
    audit.totals.leaked_lines = whole.totals.leaked_lines;
    compare_state(image, &audit, &mut whole);
    audit.findings.append(&mut whole.findings);
    audit.more += whole.more;
    audit.findings.sort_by_key(|f| (f.at, f.problem, f.ino));
    audit
}

/// Whether the maps of a region have any bit. A hole is not read.
pub(crate) fn is_marked<S: Source>(image: &Image<'_, S>, region: u64) -> bool {
    let geometry = image.geometry;
    let at = page_at(geometry.map_start(region));
    // Page bits, then line words.
    let pages = geometry.region_end(region) - geometry.region_start(region);
    let len = PAGE + pages * 8;
    // Asked once: on tmpfs the answer may take a look at each page from here to the next data.
    !image.pool.is_hole(at, len) && (at..at + len).step_by(8).any(|at| image.pool.load(at) != 0)
}

fn compare_region<S: Source>(
    image: &Image<'_, S>,
    claims: &Claims,
    region: u64,
    clean: bool,
    part: &mut Part,
) {
    let geometry = image.geometry;
    let usable = geometry.allocatable(region);
    let mut found = Region {
        usable,
        ..Region::default()
    };
    if claims.any_in(region) || is_marked(image, region) {
        for first in words(geometry, region) {
            compare_word(image, claims, first, &mut found, part);
        }
    } else {
        found.free_pages = found.usable.end - found.usable.start;
    }
    found.report(image, region, clean, part);
}

/// What the maps of a region say.
#[derive(Default)]
struct Region {
    usable: Range<u64>,
    free_pages: u64,
    free_lines: u64,
    leaked_pages: u64,
    leaked_lines: u64,
    /// Where the first leak is.
    leak: u64,
}

impl Region {
    fn report<S: Source>(self, image: &Image<'_, S>, region: u64, clean: bool, part: &mut Part) {
        if self.leaked_pages + self.leaked_lines > 0 {
            let detail = format!(
                "region {region}: {} pages and {} lines are used by nothing",
                self.leaked_pages, self.leaked_lines
            );
            part.report(Problem::Leak, self.leak, detail, Fix::Maps);
        }
        part.totals.leaked_pages += self.leaked_pages;
        part.totals.leaked_lines += self.leaked_lines;
        part.totals.free_lines += self.free_pages * LINES_PER_PAGE + self.free_lines;
        let at = image.geometry.summary_at(region);
        let (stored, found) = (image.pool.load(at), self.free_pages | self.free_lines << 32);
        if clean && stored != found {
            let detail = format!("summary of region {region} is {stored:#x}, should be {found:#x}");
            part.report(Problem::Summary, at, detail, Fix::Maps);
        }
    }
}

/// Compare 64 pages.
fn compare_word<S: Source>(
    image: &Image<'_, S>,
    claims: &Claims,
    first: u64,
    found: &mut Region,
    part: &mut Part,
) {
    let geometry = image.geometry;
    let at = geometry.page_bit(first).0;
    let set = image.pool.load(at);
    let usable = mask(&found.usable, first);
    if set & !usable != 0 {
        let detail = format!("page bits {:#x} from page {first} on", set & !usable);
        part.report(Problem::StrayBits, at, detail, Fix::Maps);
    }
    let whole = claims.whole_pages(first);
    let claimed = whole | claims.line_pages(first);
    for page in pages_of(first, claimed & !set) {
        part.report(
            Problem::Unmarked,
            at,
            format!("page {page} is in use, not marked"),
            Fix::Maps,
        );
    }
    part.totals.pages += u64::from(claimed.count_ones());
    let behind = geometry.region_end(first / REGION_PAGES);
    for page in first..behind.min(first + 64) {
        let bit = 1 << (page - first);
        let at = geometry.line_word(page);
        let stored = image.pool.load(at);
        let lines = claims.lines_of(page);
        part.totals.lines += u64::from(lines.count_ones());
        if usable & bit == 0 {
            if stored != 0 {
                let detail = format!("line bits {stored:#x} of page {page}");
                part.report(Problem::StrayBits, at, detail, Fix::Maps);
            }
            continue;
        }
        match set & bit != 0 {
            false => found.free_pages += 1,
            true if stored == 0 => {}
            true => found.free_lines += u64::from((!stored).count_ones()),
        }
        if whole & bit != 0 {
            if stored != 0 {
                let detail = format!("page {page} is used whole, its lines are {stored:#x}");
                part.report(Problem::LinesInPage, at, detail, Fix::Maps);
            }
            continue;
        }
        if lines & !stored != 0 {
            let detail = format!(
                "lines {:#x} of page {page} are in use, not marked",
                lines & !stored
            );
            part.report(Problem::Unmarked, at, detail, Fix::Maps);
        }
        let leaked = if lines == 0 && set & bit != 0 {
            found.leaked_pages += 1;
            true
        } else {
            found.leaked_lines += u64::from((stored & !lines).count_ones());
            stored & !lines != 0
        };
        if leaked && found.leak == 0 {
            found.leak = at;
        }
    }
}

/// Compare the words of the mount state.
fn compare_state<S: Source>(image: &Image<'_, S>, audit: &Audit, part: &mut Part) {
    let epoch = image.pool.load(state::EPOCH);
    if image.epoch().is_none() {
        let clean = image.pool.load(state::CLEAN_EPOCH) & !state::REPAIRING;
        let detail = format!("epoch {epoch}, last clean epoch {clean}");
        part.report(Problem::Epoch, state::EPOCH, detail, Fix::Maps);
    } else if epoch == EPOCH_MAX {
        let detail = format!("this was mount {epoch}, the last before the count starts over");
        part.report(Problem::EpochsUsedUp, state::EPOCH, detail, Fix::Maps);
    }
    if !audit.clean {
        return;
    }
    let (stored, found) = (image.pool.load(state::FREE_LINES), audit.totals.free_lines);
    if stored != found {
        let detail = format!("{stored} free lines are counted, {found} found");
        part.report(Problem::Counter, state::FREE_LINES, detail, Fix::Maps);
    }
}

const _: () = assert!(REGION_PAGES.is_multiple_of(WORDS_PER_PAGE));
