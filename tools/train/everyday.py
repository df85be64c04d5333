"""Requests of everyday life, drawn from tables: advice, lists, explanations, short letters, descriptions, recipes."""

import re

# {d} doing something, {o} something to get better at, {t} a thing to explain, {p} a pair, {e} an event to plan, {f} food, {c} a scene, {w} a state of mind,
# {r} a person, {l} a letter's purpose, {h} something worth care, {y} a why-question, {k} a small number.
TEMPLATES = """What are the benefits of {d}?|What are the advantages of {d}?|Why is {d} good for you?|Is {d} worth it?|What do I need to know before {d}?|
Give me {k} tips for {d}.|Give me {k} reasons for {d}.|What are common mistakes in {d}?|How do I get started with {d}?|Describe the joy of {d} in a few sentences.|
How can I {o}?|What helps me {o}?|Give me some advice on how to {o}.|I want to {o}. Where should I start?|What is a simple way to {o}?|Give me {k} ideas to {o}.|
Explain what {t} is.|What is {t}?|How does {t} work?|Explain {t} to a ten-year-old.|Tell me about {t} in a few sentences.|What makes {t} interesting?|
What is the difference between {p}?|Compare {p}.|Which is better, {p}?|What do {p} have in common?|
Help me plan {e}.|What should I bring to {e}?|What should I wear to {e}?|Give me {k} ideas for {e}.|How do I prepare for {e}?|What can go wrong at {e}?|
How do I cook {f}?|Give me a simple recipe for {f}.|Suggest a meal with {f}.|What goes well with {f}?|Is {f} healthy?|What can I make for lunch with {f}?|
Describe {c}.|Describe {c} in three sentences.|Write a short poem about {c}.|What can you see and hear in {c}?|Write a paragraph about {c}.|
I feel {w}. What can I do?|I am {w}. Can you help me?|My friend is {w}. How can I help?|I am {w} because of {e}. Any advice?|
Write a short email to {r} to {l}.|Write a note to {r} to {l}.|Write a polite message to {r} to {l}.|How do I tell {r} that I want to {l}?|
Why is it important to care for {h}?|How can we protect {h}?|What would happen without {h}?|Why do {h} matter?|Tell me three facts about {h}.|
Why {y}?|Can you explain why {y}?|A child asks me why {y}. What should I say?""".replace("\n", "").split("|")  # fmt: skip

TABLES = {
    "d": """walking every day|reading before bed|learning to cook|keeping a diary|riding a bicycle|eating breakfast|growing vegetables|swimming|playing chess|singing in a choir|
drawing|meditating|having a pet|saving money|volunteering|travelling by train|baking bread|running|learning the guitar|taking photographs|camping|gardening|doing yoga|getting up early|
studying in a group|working from home|moving to a new city|buying a used car|painting a room|adopting a dog|eating less sugar|taking breaks|writing letters|fishing|hiking in the mountains|
watching birds|sewing clothes|recycling|cleaning the house|sharing a flat|learning history|dancing|climbing|sailing|knitting|telling stories|speaking in public|planting trees|skiing|
visiting museums|repairing things yourself|buying local food|listening to music|playing with children""",
    "o": """wake up earlier|remember names|save money|make new friends|be more patient|learn to draw|stop biting my nails|stay focused at work|get fit at home|eat more vegetables|
speak more clearly|write better essays|keep my room tidy|spend less time on my phone|be a better listener|study for an exam|overcome stage fright|manage my time|calm down before a test|
learn to swim|run faster|train my dog|keep my plants alive|make my home cosy|read more books|improve my handwriting|deal with a noisy neighbour|apologise to a friend|find a hobby|
be happier|drink less coffee|cook for many people|learn to type quickly|get rid of a headache|keep warm in winter|stay cool in summer|help the environment|be more creative|
organise my desk|prepare a speech|learn to play the piano|stop worrying|get along with my sister|choose a present for my mother|find a good doctor|keep a secret|take better photos""",
    "t": """gravity|a volcano|an earthquake|a democracy|photosynthesis|a planet|the moon|a shadow|electricity|a magnet|a vaccine|the internet|a thunderstorm|a desert|an island|a glacier|a tide|
an echo|a budget|inflation|a fable|a metaphor|a map|a compass|the water cycle|an ecosystem|a fossil|a telescope|a microscope|the heart|the brain|a cell|an atom|a battery|a bridge|a castle|
an orchestra|a symphony|a museum|a library|a newspaper|a computer|an algorithm|a robot|a season|a leap year|a time zone|a comet|a black hole|the sun|snow|fog|a cloud|the wind|soil|a seed|yeast|
cheese|chocolate|honey|a spice|a marathon|the Olympic Games|a penguin|a whale|a bat|an ant colony|a spider's web|a coral reef|a rainforest|friendship|courage|kindness|a habit|a dream""",
    "p": """a lake and a pond|a cat and a dog|tea and coffee|butter and margarine|a novel and a poem|a crocodile and an alligator|a violin and a guitar|a city and a village|a fruit and a vegetable|
a star and a planet|a butterfly and a moth|weather and climate|a hare and a rabbit|a bus and a train|jam and honey|a king and a president|rain and snow|a spider and an insect|a wolf and a fox|
a donkey and a horse|an onion and a leek|a teacher and a coach|a friend and a neighbour|cotton and wool|a hill and a mountain|a river and a canal|a turtle and a tortoise|a crow and a raven|
football and tennis|a letter and an email|a clock and a calendar|oil and vinegar|a forest and a jungle|rice and pasta|summer and winter|a doctor and a nurse|a boat and a ship""",
    "e": """a birthday party|a picnic|a camping trip|a job interview|a wedding|a school play|a long flight|a road trip|a family dinner|a day in the mountains|a rainy weekend|a garden party|
a first date|a visit to the zoo|a week in Italy|a winter holiday|a music festival|an exam|a dentist's appointment|a move to another town|a business trip|a barbecue|a hike in the forest|
a football match|a day at the museum|a sleepover|a school trip|a surprise for my father|a costume party|a boat tour|a quiet evening at home|a charity run|a new year's party""",
    "f": """potatoes and eggs|lentils|chicken and carrots|tomatoes and pasta|beans|mushrooms|pumpkin|apples and oats|fish and lemon|cheese and bread|spinach|cabbage|chickpeas|bananas|noodles|
a vegetable soup|pancakes|an omelette|a fruit salad|a potato salad|sandwiches|a pizza|a curry|a stew|cookies|an apple pie|a tomato sauce|roast vegetables|a bean soup|porridge|garlic bread|
corn|sweet potatoes|salmon|tofu and broccoli|yoghurt and berries|zucchini|peppers|peas|cauliflower""",
    "c": """a quiet beach in winter|a crowded train|an old library|a village in the mountains|a kitchen full of smells|a storm at sea|a forest in the fog|a playground after school|a small bakery|
a city at night|a farm at sunrise|a snowy street|a river in spring|an empty theatre|a fair in the evening|a garden in bloom|a harbour with fishing boats|a desert at noon|a busy airport|
a classroom before an exam|a castle on a hill|a park in October|a campfire|a concert hall|a grandmother's living room|a workshop full of tools|a pond full of frogs|a rooftop at sunset""",
    "w": """tired all day|bored|lonely|stressed|homesick|worried about money|afraid of flying|sad|angry with my brother|too busy|shy|nervous before an exam|unhappy with my work|jealous|
overwhelmed|disappointed|new in town|unable to decide|afraid of the dark|bad at mathematics|always late|excited about a trip|unsure about my future|in love|out of shape""",
    "r": """my teacher|my boss|a colleague|my landlord|my aunt|my grandfather|a customer|my best friend|my cousin|the city council|a hotel|my doctor|my coach|a former teacher|my team|a friend abroad|
my daughter's school|the library|a shop|my sister""",
    "l": """ask for a day off|say sorry for being late|invite them to dinner|thank them for a gift|ask for help with a project|say that I am ill|cancel a meeting|wish them a happy birthday|
ask about opening hours|complain about noise|congratulate them on a new job|return a book|move an appointment|ask for advice|say goodbye|recommend a book|order a cake|tell them about my holiday|
offer my help|ask for a letter of recommendation""",
    "h": """forests|rivers|whales|old buildings|the oceans|birds|butterflies|clean air|wetlands|elephants|libraries|coral reefs|small shops|languages|family traditions|trees in cities|our teeth|
our eyes|our joints|friendships|the soil|bats|wolves|spiders|earthworms|museums|seeds|the night sky|polar bears|drinking water|our skin|sharks""",
    "y": """is the sky blue|do cats purr|do we dream|is the sea salty|do birds fly south|do we yawn|does ice float|do stars twinkle|do dogs wag their tails|does bread rise|do we need sleep|
do people laugh|does the moon change its shape|do flowers smell|do volcanoes erupt|do we get hungry|is exercise good for us|do onions make us cry|do we have seasons|do bees make honey|
do wolves howl|does metal rust|do we celebrate birthdays|is snow white|do fish live in water|do children play|is history important|do people lie|does time seem to fly|do we forget things""",
    "k": "two|three|four|five",
}
TABLES = {k: v.replace("\n", "").split("|") for k, v in TABLES.items()}


def draw(random):
    return random.choice(TEMPLATES).format(**{k: random.choice(v) for k, v in TABLES.items()})


PLAIN = set("""a about an and are at can could do does for from give have how i in is it me my of on or short some story tell that the to us we what why with write you""".split())


def content(text):
    """The words that say what a request is about."""
    return set(re.findall(r"[a-z]+", text.lower())) - PLAIN


def is_like(text, others):
    """Whether it has all content words of one of `others`."""
    own = content(text)
    return any(content(o) <= own for o in others)
