"""The dashboard: pages that show and change jobs, topics and workers. Nothing is loaded from the internet.

A page is made here, on the server, as HTML and SVG. It works by links and forms; a small script shows moments in the
reader's time zone and keeps the figures of open tabs live.

    site        the routes, and what surrounds each page: viewer, audit log, safe headers, errors as pages
    entering    finds the viewer, checks that an action comes from a page of this server, signs in and out;
                the cookie of a sign-in, and the tokens of forms
    visit       one request of a viewer, what its forms hold, and the places that can be visited
    pages       one module for each noun: what it shows and does

    snapshot    one look at Redis for all pages and tabs, at most every five seconds; tells open tabs of it
    timeline    what happened in each recent minute, and how many jobs are due when, topic by topic

    charts      SVG, the marks of its axes, and spans of time (pure)
    words       numbers, times, cron expressions and payloads as people read them (pure)
    rendering   templates and files for the browser
    leaves      the pages of the guide as HTML
"""
