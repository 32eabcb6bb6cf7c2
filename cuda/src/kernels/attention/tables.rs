//! Who attends to whom, as the tables that the kernels of attention read. They are made on the host, once a batch.

use super::{Heads, KEYS, TILE, TILE_FEW, piece_len};
use crate::buffer::{Buffer, View};
use crate::{CudaError, Gpu};

/// Rows of a batch that follow each other, and the rows that they follow. Segments lie end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row.
    pub start: usize,
    /// Number of rows.
    pub len: usize,
    /// The segment that it continues; always earlier in the table.
    pub parent: Option<usize>,
    /// Position of its first row on the path from the root.
    pub position: usize,
}

/// Rows of a batch that continue a sequence whose keys and values lie in the pages of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// First row.
    pub start: usize,
    /// Number of rows.
    pub len: usize,
    /// Position of the first row in its sequence.
    pub position: usize,
    /// The sequence's pages, first positions first, with room for the new rows.
    pub pages: &'a [u32],
}

/// A tile of queries as kernels read it: row and position of its first token, where its path begins in the table, its first query row's
/// head within the group, its number of query rows.
type Tile = [u32; TILE_NUMBERS];

const TILE_NUMBERS: usize = 5;

/// A tile of keys: row and position of its first key, its number of keys, where its readers begin in the list, their number, and the row
/// of its first key's sums, or [`WHOLE`].
type KeyTile = [u32; 6];

/// The tile of keys has all its readers.
const WHOLE: u32 = u32::MAX;

/// A tile of keys whose readers come in pieces: row of its first key, its number of keys, the first piece's first row of sums, the number
/// of pieces.
type Pieces = [u32; 4];

fn number(x: usize) -> u32 {
    u32::try_from(x).expect("fewer than 2^32 rows")
}

/// Cuts the query rows of `len` tokens into tiles.
fn cut(tiles: &mut Vec<Tile>, (start, len, position): (usize, usize, usize), path: usize, group: usize, tile: usize) {
    for first in (0..len * group).step_by(tile) {
        let (token, head, queries) = (first / group, first % group, tile.min(len * group - first));
        tiles.push([start + token, position + token, path, head, queries].map(number));
    }
}

/// Position after a tile's last token: the number of keys on its path.
fn keys(tile: &Tile, group: usize) -> usize {
    let [_, position, _, head, queries] = tile.map(|x| x as usize);
    position + (head + queries).div_ceil(group)
}

/// Tiles of queries on the device, and the table in which they look up the rows of their keys.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    pub table: View<'a, u32>,
    /// Logarithm of the size of a page.
    pub shift: u32,
    pub tiles: View<'a, Tile>,
}

/// The tables of a packed token tree, as numbers.
#[derive(Debug, Default, PartialEq)]
struct TreeTables {
    /// Rows by position, for every path to a leaf; a segment that others continue uses the path of one of them.
    table: Vec<u32>,
    tiles: Vec<Tile>,
    key_tiles: Vec<KeyTile>,
    /// Indices of tiles, for every segment those that may see its keys: its own, then its descendants' in segment order.
    readers: Vec<u32>,
    pieces: Vec<Pieces>,
    sum_rows: usize,
}

impl TreeTables {
    fn new(segments: &[Segment], group: usize) -> Self {
        check(segments);
        let mut tables = TreeTables::default();
        let path = tables.add_paths(segments);
        let mut of_segment = Vec::with_capacity(segments.len());
        for (segment, path) in segments.iter().zip(path) {
            let first = tables.tiles.len();
            cut(&mut tables.tiles, (segment.start, segment.len, segment.position), path, group, TILE);
            of_segment.push(first..tables.tiles.len());
        }
        // Long tiles start first, so that the device does not wait for a last long one.
        let mut order: Vec<usize> = (0..tables.tiles.len()).collect();
        order.sort_by_key(|&t| std::cmp::Reverse(keys(&tables.tiles[t], group)));
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, &from)| place[from] = number(to));
        tables.tiles = order.iter().map(|&t| tables.tiles[t]).collect();

        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); segments.len()];
        for (s, tiles) in of_segment.into_iter().enumerate() {
            let mut above = Some(s);
            while let Some(ancestor) = above {
                readers[ancestor].extend_from_slice(&place[tiles.clone()]);
                above = segments[ancestor].parent;
            }
        }
        for (segment, readers) in segments.iter().zip(readers) {
            tables.add_keys(segment, readers, group);
        }
        tables.key_tiles.sort_by_key(|tile| std::cmp::Reverse(tile[4]));
        tables
    }

    /// Cuts a segment's keys into tiles, and where others continue it their readers into pieces. How depends on the segment and what is
    /// below it alone, and so do the sums.
    fn add_keys(&mut self, segment: &Segment, readers: Vec<u32>, group: usize) {
        let own = (segment.len * group).div_ceil(TILE);
        for key in (0..segment.len).step_by(KEYS) {
            // Tiles of the segment's own queries before this key see none of the tile's keys.
            let passed = key * group / TILE;
            let (begin, count) = (self.readers.len() + passed, readers.len() - passed);
            let piece = if readers.len() == own { count } else { piece_len(count) };
            let (row, keys) = (segment.start + key, KEYS.min(segment.len - key));
            let pieces = count.div_ceil(piece);
            if pieces > 1 {
                self.pieces.push([row, keys, self.sum_rows, pieces].map(number));
            }
            for first in (0..count).step_by(piece) {
                let [row, position, keys, first, count] =
                    [row, segment.position + key, keys, begin + first, piece.min(count - first)].map(number);
                let place = if pieces > 1 { number(self.sum_rows) } else { WHOLE };
                self.sum_rows += if pieces > 1 { keys as usize } else { 0 };
                self.key_tiles.push([row, position, keys, first, count, place]);
            }
        }
        self.readers.extend(readers);
    }

    /// Writes the paths to all leaves; where the path of each segment begins.
    fn add_paths(&mut self, segments: &[Segment]) -> Vec<usize> {
        let mut leaf: Vec<usize> = (0..segments.len()).collect();
        for s in (0..segments.len()).rev() {
            if let Some(parent) = segments[s].parent {
                leaf[parent] = leaf[s];
            }
        }
        let mut begin = vec![0; segments.len()];
        for (s, segment) in segments.iter().enumerate().filter(|(s, _)| leaf[*s] == *s) {
            begin[s] = self.table.len();
            self.table.resize(begin[s] + segment.position + segment.len, 0);
            let mut above = Some(s);
            while let Some(ancestor) = above {
                let Segment { start, len, parent, position } = segments[ancestor];
                let rows = &mut self.table[begin[s] + position..][..len];
                rows.iter_mut().enumerate().for_each(|(i, row)| *row = number(start + i));
                above = parent;
            }
        }
        leaf.into_iter().map(|leaf| begin[leaf]).collect()
    }
}

/// A wrong table would make kernels read and write where they must not.
fn check(segments: &[Segment]) {
    let mut end = 0;
    for (s, segment) in segments.iter().enumerate() {
        let position = segment.parent.map_or(0, |parent| {
            assert!(parent < s, "segment {s} continues segment {parent}, which is not an earlier one");
            segments[parent].position + segments[parent].len
        });
        assert!(segment.start == end && segment.position == position, "segment {s} does not begin where it must");
        end += segment.len;
    }
}

/// The tables of a packed token tree, on the device.
pub struct Tree {
    pub(super) heads: Heads,
    pub(super) rows: usize,
    table: Buffer<u32>,
    tiles: Buffer<Tile>,
    pub(super) key_tiles: Buffer<KeyTile>,
    pub(super) key_tile_count: usize,
    pub(super) readers: Buffer<u32>,
    pub(super) pieces: Buffer<Pieces>,
    /// Tiles of keys whose readers come in pieces.
    pub(super) in_pieces: usize,
    /// Rows of sums of these pieces.
    pub(super) sum_rows: usize,
}

impl Tree {
    /// Makes and uploads the tables.
    ///
    /// **Panics** if segments do not lie end to end, or one does not follow its parent; if heads are not divided among key heads, or
    /// are wider than [`super::head_width`] allows.
    ///
    /// **Errors** those of allocation.
    pub fn new(gpu: &Gpu, segments: &[Segment], heads: Heads) -> Result<Tree, CudaError> {
        heads.check();
        let tables = TreeTables::new(segments, heads.group());
        Ok(Tree {
            heads,
            rows: segments.iter().map(|segment| segment.len).sum(),
            table: gpu.upload("paths of attention", &tables.table)?,
            tiles: gpu.upload("tiles of attention", &tables.tiles)?,
            key_tiles: gpu.upload("key tiles of attention", &tables.key_tiles)?,
            key_tile_count: tables.key_tiles.len(),
            readers: gpu.upload("readers of attention", &tables.readers)?,
            pieces: gpu.upload("pieces of attention", &tables.pieces)?,
            in_pieces: tables.pieces.len(),
            sum_rows: tables.sum_rows,
        })
    }

    pub(super) fn queries(&self) -> Queries<'_> {
        Queries { table: self.table.view(), shift: 0, tiles: self.tiles.view() }
    }
}

/// The tables of a batch whose keys and values lie in a cache, on the host. They are one list of numbers, so that they come to the device
/// together, with whatever else a step needs there.
pub struct CachedTables {
    heads: Heads,
    rows: usize,
    cache_rows: usize,
    shift: u32,
    /// Tiles of sequences that grow by few tokens, and by many.
    tiles: [usize; 2],
    key_blocks: usize,
    /// Slots, both kinds of tiles, and the pages of all sequences.
    numbers: Vec<u32>,
}

/// [`CachedTables`] on the device.
#[derive(Clone, Copy)]
pub struct Cached<'a> {
    pub(super) heads: Heads,
    pub(super) rows: usize,
    /// Rows of the cache that it touches: all below this.
    pub(super) cache_rows: usize,
    /// Row of the cache that the keys and values of each row of the batch go to.
    pub(super) slots: View<'a, u32>,
    /// Of sequences that grow by few tokens, for attention_decode.
    pub(super) few: Queries<'a>,
    /// Of sequences that grow by many, for attention_fwd.
    pub(super) many: Queries<'a>,
    /// Key blocks of a path that there are partial results of at most.
    pub(super) key_blocks: usize,
}

impl CachedTables {
    /// Makes the tables for a cache with pages of `page` positions.
    ///
    /// **Panics** if extensions do not lie end to end, or a sequence has too few pages; if `page` is not a power of two; as [`Tree::new`]
    /// on heads.
    pub fn new(extensions: &[Extension<'_>], page: usize, heads: Heads) -> CachedTables {
        heads.check();
        assert!(page.is_power_of_two());
        let group = heads.group();
        let (mut table, mut numbers, mut many, mut few) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for &Extension { start, len, position, pages } in extensions {
            assert!(start == numbers.len() && (position + len).div_ceil(page) <= pages.len());
            let span = (start, len, position);
            if len == 1 || len * group <= TILE_FEW {
                cut(&mut few, span, table.len(), group, TILE_FEW);
            } else {
                cut(&mut many, span, table.len(), group, TILE);
            }
            numbers.extend((position..position + len).map(|p| number(pages[p / page] as usize * page + p % page)));
            table.extend_from_slice(pages);
        }
        let blocks = few.iter().map(|tile| keys(tile, group).div_ceil(KEYS)).max().unwrap_or(0);
        let rows = numbers.len();
        for tile in few.iter().chain(&many) {
            numbers.extend_from_slice(tile);
        }
        numbers.extend_from_slice(&table);
        CachedTables {
            heads,
            rows,
            cache_rows: table.iter().max().map_or(0, |&last| (last as usize + 1) * page),
            shift: page.trailing_zeros(),
            tiles: [few.len(), many.len()],
            key_blocks: rounded(blocks),
            numbers,
        }
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of the tables of any batch of so many rows and sequences of up to so many pages, at most.
    pub fn most_numbers(heads: Heads, rows: usize, sequences: usize, pages: usize) -> usize {
        let group = heads.group();
        let tiles = (rows * group).div_ceil(TILE) + sequences * group.div_ceil(TILE_FEW);
        rows + TILE_NUMBERS * tiles + sequences * pages
    }

    /// What the device is to get.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Key blocks of a path that there are partial results of, a number that grows in few large steps. With the rows it decides on the
    /// launches of a batch whose sequences grow by a token each.
    pub fn key_blocks(&self) -> usize {
        self.key_blocks
    }

    /// Floats of the workspace of [`super::attention_cached`].
    pub fn partials(&self) -> usize {
        self.heads.partials(self.tiles[0], self.key_blocks)
    }

    /// The tables on the device. That `memory` holds [`CachedTables::numbers`] when the kernels run is the caller's matter.
    ///
    /// **Panics** if it is of another length.
    pub fn at<'a>(&self, memory: View<'a, u32>) -> Cached<'a> {
        assert_eq!(memory.len(), self.numbers.len());
        let tiles_from = |from: usize, count: usize| memory.slice(from..from + TILE_NUMBERS * count).cast::<Tile>();
        let [few, many] = self.tiles;
        let behind_few = self.rows + TILE_NUMBERS * few;
        let table = memory.slice(behind_few + TILE_NUMBERS * many..memory.len());
        let queries = |tiles| Queries { table, shift: self.shift, tiles };
        Cached {
            heads: self.heads,
            rows: self.rows,
            cache_rows: self.cache_rows,
            slots: memory.slice(0..self.rows),
            few: queries(tiles_from(self.rows, few)),
            many: queries(tiles_from(behind_few, many)),
            key_blocks: self.key_blocks,
        }
    }
}

/// The next of 8, 16, 32, … key blocks.
fn rounded(blocks: usize) -> usize {
    8 * blocks.div_ceil(8).next_power_of_two()
}

impl Heads {
    /// Floats of the partial results of so many tiles over so many key blocks.
    pub(super) fn partials(&self, tiles: usize, key_blocks: usize) -> usize {
        tiles * self.n_kv_heads * key_blocks * TILE_FEW * (self.width() + 2)
    }

    /// Floats of the workspace of [`super::attention_cached`] for `sequences` that grow by a token each, of up to `positions` tokens.
    pub fn decode_partials(&self, sequences: usize, positions: usize) -> usize {
        self.partials(sequences * self.group().div_ceil(TILE_FEW), rounded(positions.div_ceil(KEYS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(shape: &[(usize, Option<usize>)]) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for &(len, parent) in shape {
            let start = segments.last().map_or(0, |last| last.start + last.len);
            let position = parent.map_or(0, |p: usize| segments[p].position + segments[p].len);
            segments.push(Segment { start, len, parent, position });
        }
        segments
    }

    /// For every query row all keys by position, and for every key all query rows, both read from the tables as the kernels do.
    #[test]
    fn tables_name_the_path_of_every_query_and_the_readers_of_every_key() {
        let group = 3;
        let shape = [(70, None), (0, Some(0)), (40, Some(1)), (5, None), (890, Some(0)), (3, Some(2))];
        let (segments, rows) = (segments(&shape), 1008);
        let tables = TreeTables::new(&segments, group);
        let paths = [vec![0], vec![0, 1], vec![0, 1, 2], vec![3], vec![0, 4], vec![0, 1, 2, 5]];
        let mut queries = vec![0; rows * group];
        for &tile in &tables.tiles {
            let [row, position, path, head, count] = tile.map(|x| x as usize);
            let s = segments.iter().position(|s| (s.start..s.start + s.len).contains(&row)).unwrap();
            assert_eq!(position, segments[s].position + row - segments[s].start);
            let rows = paths[s].iter().flat_map(|&s| segments[s].start..segments[s].start + segments[s].len);
            let keys = keys(&tile, group);
            let rows: Vec<u32> = rows.take(keys).map(number).collect();
            assert!(tables.table[path..path + keys] == rows, "path of row {row}");
            (0..count).for_each(|i| queries[row * group + head + i] += 1);
        }
        assert!(queries.iter().all(|&times| times == 1));
        assert!(tables.tiles.is_sorted_by_key(|tile| std::cmp::Reverse(keys(tile, group))));

        let mut keys = vec![0; rows];
        let mut tiles = tables.key_tiles.clone();
        tiles.sort_by_key(|tile| (tile[0], tile[3]));
        for tiles in tiles.chunk_by(|a, b| a[0] == b[0]) {
            let [row, position, count, ..] = tiles[0].map(|x| x as usize);
            let s = segments.iter().position(|s| (s.start..s.start + s.len).contains(&row)).unwrap();
            assert_eq!(position, segments[s].position + row - segments[s].start);
            let mut seen_by: Vec<usize> = Vec::new();
            for &[.., first, readers, _] in tiles {
                for &reader in &tables.readers[first as usize..(first + readers) as usize] {
                    let [row, _, _, head, count] = tables.tiles[reader as usize].map(|x| x as usize);
                    seen_by.extend((0..count).map(|i| row * group + head + i));
                }
            }
            assert!(seen_by.is_sorted(), "readers come in segment order");
            let below = paths.iter().zip(&segments).filter(|(path, _)| path.contains(&s));
            let below = below.flat_map(|(_, s)| s.start * group..(s.start + s.len) * group);
            // Those that were passed over are before the tile's first key.
            let want: Vec<usize> = below.skip((row - segments[s].start) * group / TILE * TILE).collect();
            assert!(seen_by == want, "readers of the keys from {row} on");
            // 48 tiles see the first segment; nobody but itself sees the fifth.
            assert_eq!(tiles.len(), if s == 0 { 2 } else { 1 });
            let places: Vec<u32> = tiles.iter().map(|tile| tile[5]).collect();
            match tables.pieces.iter().find(|pieces| pieces[0] == tiles[0][0]) {
                Some(&[_, keys, first, pieces]) => {
                    let rows: Vec<u32> = (0..pieces).map(|piece| first + piece * keys).collect();
                    assert_eq!((keys as usize, places), (count, rows));
                }
                None => assert_eq!(places, [WHOLE]),
            }
            keys[row..row + count].iter_mut().for_each(|key| *key += 1);
        }
        assert_eq!((tables.pieces.len(), tables.sum_rows), (2, 2 * 70));
        assert!(keys.iter().all(|&times| times == 1));
    }

    #[test]
    fn a_chain_of_segments_has_one_path() {
        let tables = TreeTables::new(&segments(&[(2, None), (1, Some(0)), (2, Some(1))]), 1);
        assert_eq!(tables.table, [0, 1, 2, 3, 4]);
        assert_eq!(tables.key_tiles, [[0, 0, 2, 0, 3, WHOLE], [2, 2, 1, 3, 2, WHOLE], [3, 3, 2, 5, 1, WHOLE]]);
        assert_eq!(TreeTables::new(&[], 1), TreeTables::default());
    }

    #[test]
    #[should_panic(expected = "segment 1 does not begin where it must")]
    fn segments_must_lie_end_to_end() {
        let mut segments = segments(&[(2, None), (1, Some(0))]);
        segments[1].position = 1;
        TreeTables::new(&segments, 1);
    }
}
