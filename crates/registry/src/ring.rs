//! Figures on a ring: how groups cover machines that are equal, so that none is covered more than another. Pure.
//!
//! A figure is a set of the ring's places. Turned round the ring it covers each place equally often, and two places together as
//! often as their distance occurs in it. So a figure in which all distances occur about as often (a difference set, where there
//! is one) lets all places meet alike.

/// Up to so many places all ways to begin are tried. On larger rings, where figures are small beside them, the first does.
const SMALL: usize = 32;

/// `width` of a ring's `count` places, each distance between which occurs about as often as any other.
pub(crate) fn figure(count: usize, width: usize) -> Vec<usize> {
    assert!((1..=count).contains(&width), "a figure has its place on the ring");
    if width == 1 {
        return vec![0];
    }
    let tried = if count <= SMALL { count - 1 } else { 1 };
    let begins = (1..=tried).map(|second| vec![0, second]);
    let figures = begins.map(|begin| improved(count, completed(count, width, begin)));
    figures.min_by_key(|figure| unevenness(count, figure)).expect("a ring of two places or more")
}

/// By how many places a figure is turned from each group to the next: each turn comes once in a round, and those that follow
/// each other overlap the least, the sooner the less.
pub(crate) fn pace(count: usize, figure: &[usize]) -> usize {
    let often = distances(count, figure);
    let overlaps = |pace: &usize| (1..count).map(|turns| often[turns * pace % count]).collect::<Vec<_>>();
    let paces = (1..=count).filter(|&pace| common_divisor(pace, count) == 1);
    paces.min_by_key(overlaps).expect("one has no divisor in common with any")
}

/// Adds places, each time the one that suits best.
fn completed(count: usize, width: usize, mut figure: Vec<usize>) -> Vec<usize> {
    while figure.len() < width {
        let with = |place: &usize| unevenness(count, &[&figure[..], &[*place]].concat());
        let best = free(count, &figure).into_iter().min_by_key(with);
        figure.push(best.expect("a ring has as many places as a figure"));
    }
    figure
}

/// Moves places, each time the one by which most is won, as long as something is.
fn improved(count: usize, mut figure: Vec<usize>) -> Vec<usize> {
    loop {
        let free = free(count, &figure);
        let moves = (0..figure.len()).flat_map(|at| free.iter().map(move |&place| (at, place)));
        let moved = moves.map(|(at, place)| {
            let mut moved = figure.clone();
            moved[at] = place;
            moved
        });
        let best = moved.min_by_key(|figure| unevenness(count, figure));
        match best.filter(|best| unevenness(count, best) < unevenness(count, &figure)) {
            Some(best) => figure = best,
            None => return figure,
        }
    }
}

fn free(count: usize, figure: &[usize]) -> Vec<usize> {
    (0..count).filter(|place| !figure.contains(place)).collect()
}

/// Least where all distances occur equally often.
fn unevenness(count: usize, figure: &[usize]) -> usize {
    distances(count, figure).iter().map(|often| often * often).sum()
}

/// How often each distance occurs from one place of a figure to another, round the ring in one direction.
fn distances(count: usize, figure: &[usize]) -> Vec<usize> {
    let mut often = vec![0; count];
    let pairs = figure.iter().flat_map(|from| figure.iter().map(move |to| (from, to))).filter(|(from, to)| from != to);
    pairs.for_each(|(from, to)| often[(to + count - from) % count] += 1);
    often
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_are_difference_sets_they_are_found() {
        for (count, width) in [(7, 3), (11, 5), (13, 4), (13, 9), (15, 7), (21, 5), (31, 6)] {
            let often = distances(count, &figure(count, width));
            assert!(often[1..].iter().all(|times| *times == often[1]), "{width} of {count}: {often:?}");
        }
    }

    #[test]
    fn a_figure_has_so_many_places_and_its_turns_come_once() {
        for count in 2..40 {
            for width in 1..=count.min(12) {
                let mut places = figure(count, width);
                let pace = pace(count, &places);
                let mut turns: Vec<_> = (0..count).map(|turn| turn * pace % count).collect();
                turns.sort_unstable();
                assert!(turns.into_iter().eq(0..count), "pace {pace} on {count}");
                places.sort_unstable();
                places.dedup();
                assert!(
                    places.len() == width && places.iter().all(|place| *place < count),
                    "{width} of {count}: {places:?}"
                );
            }
        }
    }

    #[test]
    fn large_rings_have_figures_without_a_distance_twice() {
        for (count, width) in [(100, 5), (200, 10), (400, 12)] {
            let figure = figure(count, width);
            assert!(distances(count, &figure).iter().all(|often| *often <= 1), "{width} of {count}: {figure:?}");
        }
    }

    #[test]
    fn groups_in_a_row_overlap_least() {
        for (count, width) in [(8, 5), (12, 5), (12, 10), (20, 10)] {
            let figure = figure(count, width);
            let often = distances(count, &figure);
            let least = (1..count).filter(|&pace| common_divisor(pace, count) == 1).map(|pace| often[pace]).min();
            assert_eq!(Some(often[pace(count, &figure)]), least, "{width} of {count}: {often:?}");
        }
    }
}
