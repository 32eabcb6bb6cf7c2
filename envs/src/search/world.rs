//! A world of its own: people, towns, rivers, companies, books and festivals, a document on each, and questions over two of them.
//!
//! It knows its own facts and nothing of episodes. Names are made of syllables, so that no model has read of them. The world is
//! one and the same everywhere: it follows from [`VERSION`].

use crate::Stream;

/// Changes whenever the world does.
pub const VERSION: u64 = 1;

const TOWNS: usize = 240;
const RIVERS: usize = 60;
const PEOPLE: usize = 820;
const COMPANIES: usize = 320;
const BOOKS: usize = 400;
const FESTIVALS: usize = 160;

const REGIONS: [&str; 12] = [
    "Arvelle",
    "Bromark",
    "Calderin",
    "Dunmere",
    "Eskarra",
    "Farholt",
    "Greyland",
    "Hestia",
    "Ilvane",
    "Jorvik Coast",
    "Kestrel Hills",
    "Lowmarch",
];
const PROFESSIONS: [&str; 12] = [
    "baker",
    "botanist",
    "carpenter",
    "composer",
    "engineer",
    "glassblower",
    "judge",
    "painter",
    "physician",
    "sailor",
    "teacher",
    "weaver",
];
const PRODUCTS: [&str; 10] =
    ["bicycles", "clocks", "glass", "lamps", "paper", "pianos", "pumps", "ships", "telescopes", "tiles"];
const THEMES: [&str; 10] = [
    "a siege",
    "a comet",
    "an orchard",
    "two brothers",
    "a lighthouse",
    "a long winter",
    "a trial",
    "a lost map",
    "a flood",
    "a duel",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// What it is about; no two have the same.
    pub title: String,
    /// Its text.
    pub text: String,
}

struct Person {
    name: String,
    born: u64,
    town: usize,
    profession: usize,
    mother: usize,
}

/// The world.
pub struct World {
    /// A document on each thing.
    pub documents: Vec<Document>,
    towns: Vec<(String, usize, usize)>,
    rivers: Vec<String>,
    people: Vec<Person>,
    companies: Vec<(String, usize, usize)>,
    books: Vec<(String, usize)>,
    festivals: Vec<(String, usize)>,
}

/// A question over documents of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The question.
    pub text: String,
    /// The answer.
    pub answer: String,
    /// Titles of the documents that answer it, in the order in which they are needed.
    pub titles: Vec<String>,
    /// What is learned from each of them, in a line.
    pub clues: Vec<String>,
}

fn syllables(draws: &mut Stream, n: usize) -> String {
    const BEGIN: [&str; 20] =
        ["b", "br", "d", "dr", "f", "g", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z"];
    const MIDDLE: [&str; 8] = ["a", "e", "i", "o", "u", "ei", "ou", "ae"];
    const END: [&str; 8] = ["", "l", "n", "r", "m", "nd", "rk", "th"];
    let mut name = String::new();
    for _ in 0..n {
        name.push_str(BEGIN[draws.below(BEGIN.len())]);
        name.push_str(MIDDLE[draws.below(MIDDLE.len())]);
    }
    name.push_str(END[draws.below(END.len())]);
    let mut letters = name.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// `n` names, no two alike and none in `taken`.
fn names(draws: &mut Stream, n: usize, taken: &mut Vec<String>, make: impl Fn(&mut Stream) -> String) -> Vec<String> {
    let mut made = Vec::with_capacity(n);
    while made.len() < n {
        let name = make(draws);
        if !taken.contains(&name) {
            taken.push(name.clone());
            made.push(name);
        }
    }
    made
}

impl World {
    /// The world, always the same.
    pub fn new() -> World {
        let mut draws = Stream::derive("search", VERSION, "world");
        let draws = &mut draws;
        let mut taken = Vec::new();
        let rivers = names(draws, RIVERS, &mut taken, |draws| format!("River {}", syllables(draws, 2)));
        let towns = names(draws, TOWNS, &mut taken, |draws| syllables(draws, 3));
        let towns: Vec<_> =
            towns.into_iter().map(|name| (name, draws.below(RIVERS), draws.below(REGIONS.len()))).collect();
        let surnames = names(draws, PEOPLE / 4, &mut taken, |draws| syllables(draws, 2));
        let people = names(draws, PEOPLE, &mut taken, |draws| {
            format!("{} {}", syllables(draws, 2), surnames[draws.below(surnames.len())])
        });
        let people: Vec<Person> = people
            .into_iter()
            .enumerate()
            .map(|(i, name)| Person {
                name,
                // A mother is one of those before, so nobody is an own ancestor.
                born: 1600 + i as u64 * 300 / PEOPLE as u64 + draws.below(9) as u64,
                town: draws.below(TOWNS),
                profession: draws.below(PROFESSIONS.len()),
                mother: if i < 80 { i } else { i - 50 - draws.below(30) },
            })
            .collect();
        let companies = names(draws, COMPANIES, &mut taken, |draws| format!("{} Works", syllables(draws, 2)));
        let companies = companies.into_iter().map(|name| (name, draws.below(PEOPLE), draws.below(TOWNS))).collect();
        let books = names(draws, BOOKS, &mut taken, |draws| format!("The {} Papers", syllables(draws, 2)));
        let books = books.into_iter().map(|name| (name, draws.below(PEOPLE))).collect();
        let festivals = names(draws, FESTIVALS, &mut taken, |draws| format!("{} Fair", syllables(draws, 2)));
        let festivals = festivals.into_iter().map(|name| (name, draws.below(TOWNS))).collect();
        let mut world = World { documents: Vec::new(), towns, rivers, people, companies, books, festivals };
        world.write(draws);
        world
    }

    fn write(&mut self, draws: &mut Stream) {
        let mut documents = Vec::new();
        let mut add = |title: &str, sentences: Vec<String>| {
            documents.push(Document { title: title.to_owned(), text: sentences.join(" ") });
        };
        for name in &self.rivers {
            let region = REGIONS[draws.below(REGIONS.len())];
            add(
                name,
                vec![
                    format!("{name} is a river of {} kilometres.", 40 + draws.below(900)),
                    format!("{name} rises in the uplands of {region} and is fed by snow until early summer."),
                    format!(
                        "Barges have used {name} since old times, and mills along {name} once ground most of the grain of the land."
                    ),
                ],
            );
        }
        for (name, river, region) in &self.towns {
            let (river, region) = (&self.rivers[*river], REGIONS[*region]);
            add(
                name,
                vec![
                    format!("{name} is a town in the region of {region}."),
                    format!("{river} flows through {name}, and two bridges join the halves of {name}."),
                    format!(
                        "About {} people live in {name}, whose market has been held since the year {}.",
                        900 + 100 * draws.below(700),
                        1100 + draws.below(500)
                    ),
                    format!("The town hall of {name} was rebuilt after a fire."),
                ],
            );
        }
        for (i, person) in self.people.iter().enumerate() {
            let (name, town) = (&person.name, &self.towns[person.town].0);
            let mut sentences = vec![
                format!(
                    "{name} was a {} who was born in {town} in the year {}.",
                    PROFESSIONS[person.profession], person.born
                ),
                format!("{name} learned the trade early and travelled widely before settling down."),
            ];
            if person.mother != i {
                sentences.push(format!("The mother of {name} was {}.", self.people[person.mother].name));
            }
            sentences.push(format!("Letters of {name} are kept in an archive, and {name} is remembered by a plaque."));
            add(name, sentences);
        }
        for (name, founder, town) in &self.companies {
            let (founder, town) = (&self.people[*founder].name, &self.towns[*town].0);
            let product = PRODUCTS[draws.below(PRODUCTS.len())];
            add(
                name,
                vec![
                    format!("{name} is a company that makes {product}."),
                    format!("{name} was founded by {founder}, and the seat of {name} is in {town}."),
                    format!(
                        "At its height {name} employed {} people, and its catalogue was read far beyond the country.",
                        20 + draws.below(4000)
                    ),
                ],
            );
        }
        for (name, author) in &self.books {
            let author = &self.people[*author];
            add(
                name,
                vec![
                    format!("{name} is a novel written by {}.", author.name),
                    format!(
                        "{name} tells of {}, and was printed when its author was {} years old.",
                        THEMES[draws.below(THEMES.len())],
                        20 + draws.below(40)
                    ),
                    format!("Critics were slow to praise {name}, but {name} has never been out of print."),
                ],
            );
        }
        for (name, town) in &self.festivals {
            let town = &self.towns[*town].0;
            add(
                name,
                vec![
                    format!("{name} is a festival that is held in {town} every {}.", MONTHS[draws.below(MONTHS.len())]),
                    format!("{name} lasts {} days, with music, a race and a market of crafts.", 2 + draws.below(9)),
                    format!("Visitors come to {name} from far away, and the songs of {name} are known everywhere."),
                ],
            );
        }
        self.documents = documents;
    }

    /// Draws a question over two documents.
    pub fn ask(&self, draws: &mut Stream) -> Question {
        match draws.below(7) {
            0 => self.ask_of_founder(draws),
            1 => self.ask_of_author(draws),
            2 => {
                let (festival, town) = &self.festivals[draws.below(FESTIVALS)];
                let (town, river, _) = &self.towns[*town];
                let river = &self.rivers[*river];
                Question {
                    text: format!("Which river flows through the town that holds the {festival}?"),
                    answer: river.clone(),
                    titles: vec![festival.clone(), town.clone()],
                    clues: vec![format!("{festival} is held in {town}"), format!("{river} flows through {town}")],
                }
            }
            3 => {
                let (company, _, town) = &self.companies[draws.below(COMPANIES)];
                let (town, _, region) = &self.towns[*town];
                Question {
                    text: format!("In which region lies the town where {company} has its seat?"),
                    answer: REGIONS[*region].to_owned(),
                    titles: vec![company.clone(), town.clone()],
                    clues: vec![
                        format!("the seat of {company} is in {town}"),
                        format!("{town} is in {}", REGIONS[*region]),
                    ],
                }
            }
            4 => self.ask_of_mother(draws),
            kind => self.compare(draws, kind == 5),
        }
    }

    fn ask_of_founder(&self, draws: &mut Stream) -> Question {
        let (company, founder, _) = &self.companies[draws.below(COMPANIES)];
        let founder = &self.people[*founder];
        let town = &self.towns[founder.town].0;
        Question {
            text: format!("In which town was the founder of {company} born?"),
            answer: town.clone(),
            titles: vec![company.clone(), founder.name.clone()],
            clues: vec![
                format!("{company} was founded by {}", founder.name),
                format!("{} was born in {town}", founder.name),
            ],
        }
    }

    fn ask_of_author(&self, draws: &mut Stream) -> Question {
        let (book, author) = &self.books[draws.below(BOOKS)];
        let author = &self.people[*author];
        Question {
            text: format!("In which year was the author of {book} born?"),
            answer: author.born.to_string(),
            titles: vec![book.clone(), author.name.clone()],
            clues: vec![
                format!("{book} was written by {}", author.name),
                format!("{} was born in {}", author.name, author.born),
            ],
        }
    }

    fn ask_of_mother(&self, draws: &mut Stream) -> Question {
        let person = &self.people[80 + draws.below(PEOPLE - 80)];
        let mother = &self.people[person.mother];
        let profession = PROFESSIONS[mother.profession];
        Question {
            text: format!("What was the profession of the mother of {}?", person.name),
            answer: profession.to_owned(),
            titles: vec![person.name.clone(), mother.name.clone()],
            clues: vec![
                format!("the mother of {} was {}", person.name, mother.name),
                format!("{} was a {profession}", mother.name),
            ],
        }
    }

    fn compare(&self, draws: &mut Stream, by_year: bool) -> Question {
        let one = &self.people[draws.below(PEOPLE)];
        let other = loop {
            let other = &self.people[draws.below(PEOPLE)];
            if other.born != one.born {
                break other;
            }
        };
        // Of two people hardly any two share a town: every second question takes a neighbour, if there is one.
        let neighbour = self.people.iter().find(|p| p.town == one.town && p.name != one.name);
        let other = if by_year || draws.chance(0.5) { other } else { neighbour.unwrap_or(other) };
        let titles = vec![one.name.clone(), other.name.clone()];
        let told = |person: &Person| match by_year {
            true => format!("{} was born in {}", person.name, person.born),
            false => format!("{} was born in {}", person.name, self.towns[person.town].0),
        };
        let clues = vec![told(one), told(other)];
        let (text, answer) = match by_year {
            true => {
                let first = if one.born < other.born { one } else { other };
                (format!("Who was born first, {} or {}?", one.name, other.name), first.name.clone())
            }
            false => {
                let answer = if one.town == other.town { "yes" } else { "no" };
                (format!("Were {} and {} born in the same town?", one.name, other.name), answer.to_owned())
            }
        };
        Question { text, answer, titles, clues }
    }
}

impl Default for World {
    fn default() -> Self {
        World::new()
    }
}
