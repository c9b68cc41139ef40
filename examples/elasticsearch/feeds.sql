USE store;

CREATE CHANGEFEED store_to_search
    FOR products, reviews
    INTO 'external://search'
    WITH resolved = '1s';

-- The same in YugabyteDB's words, into an index of its own.
CREATE CDC FOR store.products
    INTO ELASTICSEARCH
    WITH cluster_address = '127.0.0.1:9200', index = 'catalogue';
