//! Repairs: see the module above for their order, and why a crash between any two is harmless.

use super::rescue::Rescue;
use super::{CheckError, Outcome, Report};
use crate::check::audit::{Audit, Progress, Stage, Watch, audit, each_entry, is_marked};
use crate::check::finding::{Finding, Fix, Link, Problem};
use crate::fault::{Fault, injected};
use crate::image::{Image, Superblock};
use crate::layout::{
    EPOCH_FIRST, EPOCH_MAX, LINE, LINES_PER_PAGE, PAGE, REGION_PAGES, bucket, dentry, line_at,
    page_at, state, superblock,
};
use pmem::{Domain, Journal, JournalError, MediumError, Pool};
use std::collections::HashSet;
use std::sync::Arc;

/// Rounds after which a repair gives up. Each makes progress; a handful is usual.
const ROUNDS_MAX: usize = 100;

/// Bytes that are flushed at once, if they are no hole.
const PIECE: u64 = 2 << 20;

/// A repair starts over from this epoch on: tags are wiped long before the last mount.
const EPOCH_LATE: u64 = EPOCH_MAX / 2;

/// What a round came to.
enum Round {
    /// Nothing more can be repaired.
    Over,
    /// Something was.
    Repaired,
    /// What had lost its name has another one.
    Named,
    /// So many inodes have lost their names, and there is no space for others.
    Full(usize),
}

/// A repair in progress.
struct Repair<'a> {
    pool: &'a Arc<Pool>,
    sb: &'a Superblock,
    threads: usize,
    progress: Watch<'a>,
    /// The journal cannot be read.
    journal_lost: bool,
    /// Inodes that had lost their names.
    lost: HashSet<u64>,
    report: Report,
}

/// Repair an image, of which the superblocks have been looked at.
pub(super) fn run(
    pool: &Arc<Pool>,
    sb: &Superblock,
    superblocks: Vec<Finding>,
    threads: usize,
    progress: Watch<'_>,
) -> Result<Report, CheckError> {
    let report = Report {
        outcome: Outcome::Clean,
        was_clean: Image::new(&**pool, &sb.geometry).was_clean(),
        marked_clean: false,
        replayed: 0,
        repaired: Vec::new(),
        left: Vec::new(),
        more: 0,
        totals: Default::default(),
    };
    let mut repair = Repair {
        pool,
        sb,
        threads,
        progress,
        journal_lost: false,
        lost: HashSet::new(),
        report,
    };
    repair.keep()?;
    repair.superblocks(superblocks)?;
    repair.journal()?;
    repair.rounds()?;
    repair.empty_journal()?;
    Ok(repair.report)
}

impl Repair<'_> {
    /// Make durable what a killed process left (M15): what looks right is not stored again, and the
    /// image is marked clean in the end. A clean image was durable before it was marked so. In
    /// domain `page` opening the pool has synced it, in `cache` there is nothing to do.
    fn keep(&self) -> Result<(), MediumError> {
        if self.pool.domain() != Domain::Line || injected(Fault::RepairKeepsNothing) {
            return Ok(());
        }
        let end = match self.report.was_clean {
            true => page_at(2), // the mark itself
            false => self.pool.len(),
        };
        for at in (0..end).step_by(PIECE as usize) {
            let len = PIECE.min(end - at);
            if !self.pool.is_hole(at, len) {
                self.pool.flush(at, len);
            }
        }
        self.pool.fence()
    }

    /// Write the damaged superblock from the good one.
    fn superblocks(&mut self, found: Vec<Finding>) -> Result<(), CheckError> {
        let copy = page_at(self.sb.geometry.superblock_copy());
        let primary = found.iter().any(|f| f.problem == Problem::Superblock);
        let (good, bad) = if primary { (copy, 0) } else { (0, copy) };
        let mut bytes = [0; superblock::LEN];
        self.pool.read(good, &mut bytes);
        let mut features = [0; 8];
        features.copy_from_slice(&bytes[superblock::AT_RO_COMPAT..][..8]);
        let unknown = u64::from_le_bytes(features) & !superblock::RO_COMPAT_KNOWN;
        if unknown != 0 {
            return Err(CheckError::Features(unknown));
        }
        if !found.is_empty() {
            self.pool.back(bad, PAGE)?;
            self.pool.write(bad, &bytes);
            self.pool.flush(bad, superblock::LEN as u64);
            self.pool.fence()?;
            self.report.repaired.extend(found);
        }
        Ok(())
    }

    /// Put what the journal holds in place, if it can be read.
    fn journal(&mut self) -> Result<(), CheckError> {
        let geometry = &self.sb.geometry;
        let (at, len) = (page_at(geometry.journal), page_at(geometry.journal_pages));
        match Journal::recover(self.pool, at, len, |word| geometry.holds_word(word)) {
            Ok((_, recovered)) => self.report.replayed = recovered.words,
            Err(JournalError::Medium(why)) => return Err(why.into()),
            Err(why) => {
                self.journal_lost = true;
                self.report
                    .repaired
                    .push(Finding::new(Problem::Journal, 0, at, why.to_string()));
            }
        }
        Ok(())
    }

    /// Empty a journal that cannot be read. What it left half done is repaired as far as it can be.
    fn empty_journal(&mut self) -> Result<(), MediumError> {
        if std::mem::take(&mut self.journal_lost) {
            let geometry = &self.sb.geometry;
            let (at, len) = (page_at(geometry.journal), page_at(geometry.journal_pages));
            self.pool.back(at, len)?;
            self.pool.fence()?;
            Journal::format(self.pool, at, len);
            self.pool.fence()?;
        }
        Ok(())
    }

    /// Audit and repair until nothing is wrong, or nothing can be done.
    fn rounds(&mut self) -> Result<(), CheckError> {
        let mut left = ROUNDS_MAX;
        while left > 0 {
            let image = Image::new(&**self.pool, &self.sb.geometry);
            let audit = audit(&image, self.sb, self.threads, self.progress);
            self.report.totals = audit.totals;
            let exact = audit.findings.is_empty() && audit.more == 0;
            let mut round = Round::Over;
            if !(exact && audit.clean) {
                self.mark_unclean()?;
                self.report.marked_clean = false;
                round = self.round(&audit)?;
            }
            if exact {
                let repaired = !self.report.repaired.is_empty();
                self.report.outcome = if repaired {
                    Outcome::Repaired
                } else {
                    Outcome::Clean
                };
                self.report.left.clear();
                self.report.more = 0;
                return Ok(());
            }
            // Unless a later round says otherwise.
            self.report.outcome = Outcome::ErrorsLeft;
            self.report.left = audit.findings;
            self.report.more = audit.more;
            match round {
                Round::Over => return Ok(()),
                Round::Full(lost) => {
                    let detail = format!("{lost} inodes cannot be named again: the image is full");
                    self.report
                        .left
                        .push(Finding::new(Problem::Lost, 0, 0, detail));
                    return Ok(());
                }
                Round::Repaired => left -= 1,
                Round::Named => {} // which comes to an end: each is named once
            }
        }
        Ok(())
    }

    /// Repair the worst that an audit has found.
    fn round(&mut self, audit: &Audit) -> Result<Round, CheckError> {
        let shared = |f: &&Finding| f.problem == Problem::SharedSpace;
        let own = |f: &&Finding| f.fix != Fix::None && !f.problem.is_derived();
        let mut first: Vec<&Finding> = audit.findings.iter().filter(shared).collect();
        if first.is_empty() {
            let (cuts, mends) = audit.findings.iter().filter(own).partition(|f| f.cuts());
            first = mends;
            if first.is_empty() {
                if let Some(round) = self.rescue(audit)? {
                    return Ok(round);
                }
                first = cuts;
            }
        }
        if !first.is_empty() {
            self.apply(first, audit)?;
            return Ok(Round::Repaired);
        }
        if audit.findings.iter().any(|f| f.fix == Fix::None) {
            return Ok(Round::Over);
        }
        if injected(Fault::RepairMarksFirst) {
            self.mark_clean()?;
        }
        for finding in &audit.findings {
            if let Fix::Store { at, value } = finding.fix {
                self.store(at, value)?;
            }
        }
        self.maps(audit)?;
        self.pool.fence()?;
        if audit.more == 0 {
            self.empty_journal()?;
            self.mark_clean()?;
            self.report.marked_clean = true;
        }
        self.report.repaired.extend(audit.findings.iter().cloned());
        Ok(Round::Repaired)
    }

    /// Name what damage has left without a name, if anything is.
    fn rescue(&mut self, audit: &Audit) -> Result<Option<Round>, MediumError> {
        let leaked = audit.totals.leaked_pages + audit.totals.leaked_lines;
        if !self.report.was_clean || leaked == 0 {
            return Ok(None);
        }
        let mut rescue = Rescue::new(self.pool, self.sb, audit);
        let lost = rescue.lost(&self.lost);
        if lost.is_empty() {
            return Ok(None);
        }
        let named = rescue.name(&lost)?;
        self.report.repaired.extend(named.findings);
        self.lost.extend(lost.iter().map(|inode| inode.ino));
        Ok(Some(match lost.len() - named.count {
            0 => Round::Named,
            rest => Round::Full(rest),
        }))
    }

    /// Apply repairs of single words. Those in contested pages only if there are no others.
    fn apply(&mut self, findings: Vec<&Finding>, audit: &Audit) -> Result<(), MediumError> {
        let contested = |f: &&Finding| audit.contested.contains(&(fix_at(&f.fix) / PAGE));
        let (doubtful, mut now): (Vec<&Finding>, _) = findings.into_iter().partition(contested);
        if now.is_empty() {
            now = doubtful;
        }
        // The last of a chain first: an entry that leads on to one that goes is led past it
        // before what leads to it is led past both.
        now.sort_by_key(|f| match f.fix {
            Fix::Lead { link, .. } | Fix::Remove { link, .. } => u32::MAX - link.depth,
            _ => u32::MAX,
        });
        let total = now.len() as u64;
        for (done, finding) in (1..).zip(&now) {
            self.apply_one(finding.fix)?;
            if done % 1024 == 0 || done == total {
                (self.progress)(Progress {
                    stage: Stage::Repair,
                    done,
                    total,
                });
            }
        }
        self.report.repaired.extend(now.into_iter().cloned());
        self.pool.fence()
    }

    fn apply_one(&self, fix: Fix) -> Result<(), MediumError> {
        match fix {
            Fix::Store { at, value } => self.store(at, value),
            Fix::Lead { link, word, to } if self.pool.load(link.at) == word => {
                self.store(link.at, if to == 0 { end_of(&link) } else { to })
            }
            Fix::Remove { link, word, line } if self.pool.load(link.at) == word => {
                let next = self.pool.load(line_at(line) + dentry::NEXT);
                let known = next != 0 && self.sb.geometry.holds_line(next);
                self.store(link.at, if known { next } else { end_of(&link) })
            }
            // Another repair of this round has changed the link; or there is nothing to do here.
            Fix::Lead { .. } | Fix::Remove { .. } | Fix::Maps | Fix::None => Ok(()),
        }
    }

    /// Store and flush a word, if it differs.
    fn store(&self, at: u64, value: u64) -> Result<(), MediumError> {
        if self.pool.load(at) != value {
            self.pool.back(at, 8)?;
            self.pool.store(at, value);
            self.pool.flush(at, 8);
        }
        Ok(())
    }

    /// Write the maps and summaries from what the audit has reached, and the free lines.
    fn maps(&self, audit: &Audit) -> Result<(), MediumError> {
        let geometry = &self.sb.geometry;
        let mut free_lines = 0;
        for region in 0..geometry.regions() {
            let usable = geometry.allocatable(region);
            let start = geometry.region_start(region);
            let image = Image::new(&**self.pool, geometry);
            let (mut pages, mut lines) = (usable.end - usable.start, 0);
            if audit.claims.any_in(region) || is_marked(&image, region) {
                for first in (start..start + REGION_PAGES).step_by(64) {
                    let (used, free) = self.map_word(audit, first)?;
                    pages -= used;
                    lines += free;
                }
            }
            self.store(geometry.summary_at(region), pages | lines << 32)?;
            free_lines += pages * LINES_PER_PAGE + lines;
        }
        self.store(state::FREE_LINES, free_lines)
    }

    /// Write the bits of 64 pages; returns the pages in use and the lines free in them.
    fn map_word(&self, audit: &Audit, first: u64) -> Result<(u64, u64), MediumError> {
        let geometry = &self.sb.geometry;
        let bits = audit.claims.whole_pages(first) | audit.claims.line_pages(first);
        self.store(geometry.page_bit(first).0, bits)?;
        let mut free = 0;
        let behind = geometry.region_end(first / REGION_PAGES);
        for page in first..behind.min(first + 64) {
            let lines = audit.claims.lines_of(page);
            if !injected(Fault::RepairForgetsMaps) {
                self.store(geometry.line_word(page), lines)?;
            }
            if lines != 0 {
                free += u64::from((!lines).count_ones());
            }
        }
        Ok((u64::from(bits.count_ones()), free))
    }

    /// Make sure that the image counts as unclean until the repair is done, and that whoever
    /// repeats it knows that it was not.
    fn mark_unclean(&self) -> Result<(), MediumError> {
        let clean = self.pool.load(state::CLEAN_EPOCH);
        if clean == self.pool.load(state::EPOCH) {
            let marked = match injected(Fault::RepairUnmarked) {
                true => clean - 1, // as after a crash
                false => clean | state::REPAIRING,
            };
            self.store(state::CLEAN_EPOCH, marked)?;
            self.pool.fence()?;
        }
        Ok(())
    }

    /// Mark the image clean. All else is durable.
    fn mark_clean(&self) -> Result<(), MediumError> {
        let mut epoch = self.pool.load(state::EPOCH);
        let clean = self.pool.load(state::CLEAN_EPOCH) & !state::REPAIRING;
        // If they contradict each other one is damaged, and so may the other be: no tag is to be
        // believed. Nor is any if the count has come far: it starts over.
        if clean > epoch || !(EPOCH_FIRST..EPOCH_LATE).contains(&epoch) {
            if !injected(Fault::RepairKeepsLatest) {
                self.wipe_latest()?;
            }
            epoch = EPOCH_FIRST;
        }
        // Both words are in one line: no crash shows the mark without the epoch (M5, M8, M11).
        const { assert!(state::EPOCH / LINE == state::CLEAN_EPOCH / LINE) };
        self.store(state::EPOCH, epoch)?;
        // Commit point.
        self.store(state::CLEAN_EPOCH, epoch)?;
        self.pool.fence()
    }

    /// Clear the latest pointer of each entry, so that epochs can start over.
    fn wipe_latest(&self) -> Result<(), MediumError> {
        let image = Image::new(&**self.pool, &self.sb.geometry);
        each_entry(&image, self.sb, &|line| {
            let at = line_at(line) + dentry::LATEST_NEXT;
            self.pool.store(at, 0);
            self.pool.flush(at, 8);
        });
        self.pool.fence()
    }
}

/// The word that a repair changes.
fn fix_at(fix: &Fix) -> u64 {
    match fix {
        Fix::Store { at, .. } => *at,
        Fix::Lead { link, .. } | Fix::Remove { link, .. } => link.at,
        Fix::Maps | Fix::None => 0,
    }
}

/// What ends a chain at this link.
fn end_of(link: &Link) -> u64 {
    if link.bucket { bucket::EMPTY } else { 0 }
}
