//! Word problems, generated with their solutions.
//!
//! It knows fourteen kinds of problems; each draws its numbers so that the answer is a whole number, a decimal that ends,
//! or a reduced fraction.

use super::Item;
use crate::Stream;

const NAMES: [&str; 12] = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ida", "Jon", "Kim", "Lea"];
const GOODS: [&str; 8] = ["pens", "apples", "tickets", "notebooks", "mugs", "cakes", "lamps", "plants"];

/// A kind of problem: its name, and what draws one.
type Kind = (&'static str, fn(&mut Stream) -> Drawn);

/// The kinds.
const KINDS: [Kind; 14] = [
    ("rate", rate),
    ("change", change),
    ("percent", percent),
    ("ages", ages),
    ("mixture", mixture),
    ("consecutive", consecutive),
    ("equation", equation),
    ("rectangle", rectangle),
    ("remainder", remainder),
    ("average", average),
    ("counting", counting),
    ("probability", probability),
    ("machines", machines),
    ("multiples", multiples),
];

/// A question, the equations that lead to its answer, and the answer.
struct Drawn {
    query: String,
    steps: Vec<String>,
    answer: String,
}

/// A problem whose last equation, `left = answer`, gives the answer.
fn drawn(query: String, mut steps: Vec<String>, last: String, answer: String) -> Drawn {
    steps.push(format!("{last} = {answer}"));
    Drawn { query, steps, answer }
}

/// A problem of a random kind.
pub(super) fn generate(draws: &mut Stream) -> Item {
    let (kind, draw) = KINDS[draws.below(KINDS.len())];
    let Drawn { query, steps, answer } = draw(draws);
    Item { query, answer: Some(answer), solution: steps.join(", "), kind: kind.to_owned() }
}

fn within(draws: &mut Stream, least: i64, most: i64) -> i64 {
    least + draws.below((most - least + 1) as usize) as i64
}

fn one<'a>(draws: &mut Stream, of: &[&'a str]) -> &'a str {
    of[draws.below(of.len())]
}

/// Hundredths as a decimal without zeros at its end.
fn decimal(hundredths: i64) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn rate(draws: &mut Stream) -> Drawn {
    let (name, v, t, w) = (one(draws, &NAMES), within(draws, 8, 95), within(draws, 2, 9), within(draws, 1, 40));
    let query = format!(
        "{name} travels at {v} kilometres an hour for {t} hours and then walks {w} kilometres. How many kilometres does \
         {name} cover in all?"
    );
    drawn(query, vec![format!("{v}*{t} = {}", v * t)], format!("{}+{w}", v * t), (v * t + w).to_string())
}

fn change(draws: &mut Stream) -> Drawn {
    let (name, goods) = (one(draws, &NAMES), one(draws, &GOODS));
    let (price, count) = (within(draws, 2, 19), within(draws, 2, 12));
    let cost = price * count;
    let paid = (cost / 10 + 1 + within(draws, 0, 4)) * 10;
    let query = format!(
        "{name} buys {count} {goods} at {price} dollars each and pays with {paid} dollars. How many dollars does {name} get \
         back?"
    );
    drawn(query, vec![format!("{count}*{price} = {cost}")], format!("{paid}-{cost}"), (paid - cost).to_string())
}

fn percent(draws: &mut Stream) -> Drawn {
    let (goods, price, off) = (one(draws, &GOODS), within(draws, 12, 250), within(draws, 1, 12) * 5);
    let query = format!(
        "A box of {goods} costs {price} dollars. In a sale it is {off} percent cheaper. How many dollars does it cost in the \
         sale?"
    );
    let saved = price * off;
    let steps = vec![format!("{price}*{off}/100 = {}", decimal(saved))];
    drawn(query, steps, format!("{price}-{}", decimal(saved)), decimal(100 * price - saved))
}

fn ages(draws: &mut Stream) -> Drawn {
    let first = draws.below(NAMES.len());
    let (old, young) = (NAMES[first], NAMES[(first + 1 + draws.below(NAMES.len() - 1)) % NAMES.len()]);
    let (age, gap, years) = (within(draws, 3, 40), within(draws, 2, 30), within(draws, 2, 25));
    let then = age + gap + years;
    let query = format!(
        "{old} is {gap} years older than {young}. In {years} years {old} will be {then} years old. How old is {young} now?"
    );
    let steps = vec![format!("{then}-{years} = {}", age + gap)];
    drawn(query, steps, format!("{}-{gap}", age + gap), age.to_string())
}

fn mixture(draws: &mut Stream) -> Drawn {
    let (a, b) = (within(draws, 2, 40), within(draws, 2, 40));
    let (p, q) = (within(draws, 1, 18) * 5, within(draws, 1, 18) * 5);
    let query = format!(
        "{a} litres of a drink with {p} percent juice are mixed with {b} litres of one with {q} percent juice. How many litres \
         of juice are in the mixture?"
    );
    let steps = vec![format!("{a}*{p}/100 = {}", decimal(a * p)), format!("{b}*{q}/100 = {}", decimal(b * q))];
    drawn(query, steps, format!("{}+{}", decimal(a * p), decimal(b * q)), decimal(a * p + b * q))
}

fn consecutive(draws: &mut Stream) -> Drawn {
    let (first, half) = (within(draws, 1, 999), within(draws, 1, 6));
    let (n, middle) = (2 * half + 1, first + half);
    let query = format!("What is the sum of the {n} consecutive whole numbers that begin with {first}?");
    drawn(query, vec![format!("{first}+{half} = {middle}")], format!("{middle}*{n}"), (middle * n).to_string())
}

fn equation(draws: &mut Stream) -> Drawn {
    let (x, a, b) = (within(draws, 2, 40), within(draws, 2, 15), within(draws, 1, 60));
    let c = a * x + b;
    let query = format!("Solve {a}x + {b} = {c} for x.");
    drawn(query, vec![format!("{c}-{b} = {}", a * x)], format!("{}/{a}", a * x), x.to_string())
}

fn rectangle(draws: &mut Stream) -> Drawn {
    let (width, length) = (within(draws, 2, 60), within(draws, 3, 120));
    let round = 2 * (width + length);
    let query = format!(
        "A rectangle has a perimeter of {round} metres and a width of {width} metres. What is its area in square metres?"
    );
    let steps = vec![format!("{round}/2 = {}", width + length), format!("{}-{width} = {length}", width + length)];
    drawn(query, steps, format!("{width}*{length}"), (width * length).to_string())
}

fn remainder(draws: &mut Stream) -> Drawn {
    let (children, each) = (within(draws, 3, 15), within(draws, 2, 25));
    let (left, goods) = (within(draws, 0, children - 1), one(draws, &GOODS));
    let all = children * each + left;
    let query = format!(
        "{all} {goods} are shared by {children} children, so that each gets the same number and as many as possible. How many \
         {goods} are left over?"
    );
    let steps = vec![format!("{children}*{each} = {}", children * each)];
    drawn(query, steps, format!("{all}-{}", children * each), left.to_string())
}

fn average(draws: &mut Stream) -> Drawn {
    let [a, b, c, last] = [(); 4].map(|()| within(draws, 40, 100));
    // The fourth score is moved until the mean is whole.
    let last = last - (a + b + c + last) % 4;
    let (name, sum) = (one(draws, &NAMES), a + b + c);
    let mean = (sum + last) / 4;
    let query = format!(
        "{name} scores {a}, {b} and {c} points in three tests. How many points must the fourth test bring for an average of \
         {mean}?"
    );
    let steps = vec![format!("{mean}*4 = {}", mean * 4), format!("{a}+{b}+{c} = {sum}")];
    drawn(query, steps, format!("{}-{sum}", mean * 4), last.to_string())
}

fn counting(draws: &mut Stream) -> Drawn {
    let (name, shirts, trousers) = (one(draws, &NAMES), within(draws, 3, 20), within(draws, 3, 20));
    let never = within(draws, 1, trousers - 1);
    let all = shirts * trousers;
    let query = format!(
        "{name} has {shirts} shirts and {trousers} pairs of trousers. One of the shirts does not go with {never} of the \
         trousers. How many outfits of a shirt and trousers are left?"
    );
    let steps = vec![format!("{shirts}*{trousers} = {all}")];
    drawn(query, steps, format!("{all}-{never}"), (all - never).to_string())
}

fn probability(draws: &mut Stream) -> Drawn {
    let (red, blue, green) = (within(draws, 1, 24), within(draws, 1, 24), within(draws, 0, 15));
    let all = red + blue + green;
    let (mut a, mut b) = (red, all);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let query = format!(
        "A bag holds {red} red, {blue} blue and {green} green balls. One is drawn blindly. What is the probability that it is \
         red, as a reduced fraction?"
    );
    let steps = vec![format!("{red}+{blue}+{green} = {all}")];
    drawn(query, steps, format!("{red}/{all}"), format!("\\frac{{{}}}{{{}}}", red / a, all / a))
}

fn machines(draws: &mut Stream) -> Drawn {
    let (k, each) = (within(draws, 2, 9), within(draws, 3, 30));
    let (m, hours) = (within(draws, 2, 12), within(draws, 2, 9));
    let query = format!(
        "{k} machines make {} parts in an hour. How many parts do {m} such machines make in {hours} hours?",
        k * each
    );
    let steps = vec![format!("{}/{k} = {each}", k * each), format!("{each}*{m} = {}", each * m)];
    drawn(query, steps, format!("{}*{hours}", each * m), (each * m * hours).to_string())
}

fn multiples(draws: &mut Stream) -> Drawn {
    let (k, count) = (within(draws, 3, 25), within(draws, 4, 60));
    let rest = within(draws, 0, k - 1);
    let most = k * count + rest;
    let query = format!("How many of the whole numbers from 1 to {most} are multiples of {k}?");
    let steps = vec![format!("{most}-{rest} = {}", k * count)];
    drawn(query, steps, format!("{}/{k}", k * count), count.to_string())
}
